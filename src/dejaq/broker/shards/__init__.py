"""Shards of a running cluster: their map, and the moves of buckets between them."""
