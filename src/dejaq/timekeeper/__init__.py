"""Time, passed in."""
