"""One store among several: messages and buckets that move between shards."""
