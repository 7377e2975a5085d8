"""What the brokers' metrics say over the last hours: rates and lateness of each topic."""
