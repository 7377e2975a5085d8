"""The HTTP API: one table of operations drives routing, the OpenAPI description and the reference page."""
