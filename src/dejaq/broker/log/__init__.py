"""Log topics at the broker: appends, readers, groups and retention."""
