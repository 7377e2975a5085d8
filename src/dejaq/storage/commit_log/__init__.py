"""The commit log: an ordered, checksummed file of changes, made durable by one disk synchronization per group."""
