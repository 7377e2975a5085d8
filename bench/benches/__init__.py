"""The benches: each returns the outcomes of one system for one plan."""
