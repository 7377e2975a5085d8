"""Schedules of cron topics and the time zones they run in."""
