"""One session with a broker: the connection, its address, and the broker's clock."""
