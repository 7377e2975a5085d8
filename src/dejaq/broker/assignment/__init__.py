"""Which consumer leases from which bucket: pure, so that every broker computes the same."""
