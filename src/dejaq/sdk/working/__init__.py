"""Workers: call a function of the user for each message."""
