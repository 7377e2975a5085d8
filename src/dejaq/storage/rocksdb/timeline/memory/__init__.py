"""The memory for rows: what is counted, its limit, and what of a run stays in it."""
