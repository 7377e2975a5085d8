"""DejaQ and its peers, each a small adapter at its best."""
