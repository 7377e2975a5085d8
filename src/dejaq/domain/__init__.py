"""The state of a message and the allowed changes: pure, without input, output or clock."""
