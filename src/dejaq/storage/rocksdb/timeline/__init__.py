"""The timeline of a topic: runs, the window of rows in memory, and leases."""
