"""What every bench stands on: servers, client processes, the floor, figures and records."""
