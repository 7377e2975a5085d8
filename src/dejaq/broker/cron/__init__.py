"""Cron topics: the unit that prepares occurrences, and the calls about schedules."""
