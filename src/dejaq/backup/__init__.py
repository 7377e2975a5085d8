"""Backups of a broker's data directory: checkpoints, copies that share what is equal, and their verification."""
