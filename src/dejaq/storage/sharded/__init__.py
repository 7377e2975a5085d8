"""Several shared stores that act as one storage."""
