"""Names: which are valid, and what they mean."""
