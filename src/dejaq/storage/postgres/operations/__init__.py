"""The changes of a store, one module per kind."""
