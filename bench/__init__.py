"""Benchmarks: the same work for DejaQ and its peers, in one run, on one machine."""
