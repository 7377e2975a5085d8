"""A broker among the others of its cluster."""
