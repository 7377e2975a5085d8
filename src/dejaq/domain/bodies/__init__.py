"""Bodies: compressed, in the form of the protocol, and large ones."""
