"""Records the calls of a workload and their answers, and checks them."""
