"""Checks of restarts, and of the journal."""
