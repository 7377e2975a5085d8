"""Live data for pages: one set of broker queries for all clients that ask for the same."""
