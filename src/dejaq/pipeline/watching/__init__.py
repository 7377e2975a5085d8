"""Continuous operation: a stream that keeps the lake current, and alarms about what it finds."""
