"""Delivery: what is due in the buckets of each consumer is leased and pushed."""
