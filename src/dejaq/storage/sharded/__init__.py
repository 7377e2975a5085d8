"""Several shared stores that are one."""
