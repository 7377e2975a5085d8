"""The consumer: leased messages, which are held until they are due, and their settlement."""
