"""Checks of changes to messages."""
