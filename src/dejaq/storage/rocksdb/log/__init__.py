"""Log topics in the embedded store: batches are frames of the commit log, and RocksDB has an index of them."""
