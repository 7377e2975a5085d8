"""The command `dejaq`."""
