"""Where the keys that protect the keys of topics come from: a file, the environment, or Vault."""
