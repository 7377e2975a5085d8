"""Topics, schedules, dead letters, replies and queries."""
