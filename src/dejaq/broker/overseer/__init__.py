"""Topics, clients and the state of the cluster."""
