"""Log topics in PostgreSQL: one row per batch, and one row per bucket whose lock makes offsets dense."""
