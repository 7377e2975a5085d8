"""DejaQ and its peers, each a small adapter with the best settings."""
