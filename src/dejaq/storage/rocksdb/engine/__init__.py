"""The database under the embedded store: keys, group commit, the watermark."""
