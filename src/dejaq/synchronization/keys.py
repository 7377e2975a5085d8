"""Prefixes of records that more than one package reads."""

from __future__ import annotations

# The record of each live broker, under its name.
MEMBERS = "members/"
# A record that changes whenever the rules in the storage have changed.
RIGHTS = "security/rights"
# A record that changes whenever the API keys or the ended sessions in the storage have changed.
ACCESS = "security/access"
