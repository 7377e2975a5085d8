"""Segment files: immutable files with the batches of one bucket of a log."""
