"""The caller of each request: credentials, sessions of browsers, and a connection to the brokers for each caller."""
