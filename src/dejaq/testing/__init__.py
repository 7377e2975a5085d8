"""Test support for users, which our own tests use too."""
