"""The stores of messages: one contract, several backends."""
