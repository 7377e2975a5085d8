"""The lake: its tables, files and commits."""
