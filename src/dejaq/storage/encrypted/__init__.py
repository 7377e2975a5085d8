"""Encryption at rest: a storage that seals the bodies of encrypted topics before another storage gets them."""
