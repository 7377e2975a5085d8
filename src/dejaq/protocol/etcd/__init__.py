"""Generated from proto/etcd by `make protocol`."""
