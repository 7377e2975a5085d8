"""Prefixes of records that more than one package reads."""

from __future__ import annotations

# The record of each live broker, under its name.
MEMBERS = "members/"
