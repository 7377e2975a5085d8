"""DejaQ: a scheduled-message queue."""
