"""Protection of the endpoints: TLS, and who the callers are."""
