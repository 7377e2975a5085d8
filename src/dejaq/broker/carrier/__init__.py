"""Messages: sessions, dealing buckets, leasing and pushing."""
