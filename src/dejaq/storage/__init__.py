"""Where messages are kept: one contract, several backends."""
