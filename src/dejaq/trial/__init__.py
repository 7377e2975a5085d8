"""The cluster of `dejaq cluster`: PostgreSQL, etcd and brokers on one machine, for trials."""
