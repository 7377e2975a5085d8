"""Connections to the server: addresses, statements, failures and the schema."""
