"""The lake: every message's life as tables, kept up to date by Spark, and the jobs that read them."""
