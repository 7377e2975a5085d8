"""Identities of callers: API keys, bearer tokens, certificates and TLS. The package knows no topic and no storage."""
