"""The reference storage, in the memory of this process."""
