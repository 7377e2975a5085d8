"""The shared store: the storage contract on PostgreSQL, for several brokers at once."""
