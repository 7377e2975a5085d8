"""The parts that all benches use: servers, client processes, the floor, figures and records."""
