"""Log topics in the SDK: appending, reading by offsets, and groups."""
