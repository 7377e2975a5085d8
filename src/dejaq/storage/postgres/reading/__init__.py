"""Queries and snapshots."""
