"""The broker: a process that takes, keeps and delivers messages."""
