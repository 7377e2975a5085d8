"""Tests of the gateway that need no server."""
