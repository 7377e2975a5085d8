"""Tests of rates and lateness over time."""
