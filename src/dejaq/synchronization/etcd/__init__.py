"""Synchronization by etcd."""
