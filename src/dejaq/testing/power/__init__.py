"""A file system that loses at a power cut what no sync covered, for tests with real processes."""
