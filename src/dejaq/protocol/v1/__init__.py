"""Generated from proto/dejaq/v1 by `make protocol`."""
