"""The journal on disk: what happened to every message, in signed and chained segments."""
