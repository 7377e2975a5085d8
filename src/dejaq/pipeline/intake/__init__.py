"""How the events of a journal enter the lake."""
