"""Checks of topics, queries and snapshots."""
