"""Client sessions: the state machine of a connection, and the producer or consumer on it."""
