"""What each operation of the HTTP API does, by subject."""
