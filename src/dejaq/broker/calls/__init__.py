"""The calls of a broker outside of sessions, one module per subject."""
