"""The commands about users, keys, sessions and certificates."""
