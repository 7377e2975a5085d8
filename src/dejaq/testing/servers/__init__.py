"""Real servers on loopback that a test starts and stops, and faults for them."""
