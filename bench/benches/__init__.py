"""The benches: each gives the outcomes of one system for one plan."""
