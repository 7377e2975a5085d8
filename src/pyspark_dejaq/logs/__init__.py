"""Log topics in Spark: batch and streaming reads by offsets, and appends."""
