"""Commands for operators: brokers, clusters, stores and journals."""
