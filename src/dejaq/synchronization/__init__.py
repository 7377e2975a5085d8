"""What brokers agree on: who is there, which topics exist, who works on what."""
