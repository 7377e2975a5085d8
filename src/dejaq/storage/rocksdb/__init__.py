"""The embedded store on RocksDB."""
