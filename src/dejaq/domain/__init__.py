"""What a message is and what may happen to it: pure, without input, output or clock."""
