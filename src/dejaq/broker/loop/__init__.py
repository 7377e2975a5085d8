"""The event loop of the broker."""
