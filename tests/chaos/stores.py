"""Brokers over each store that outlives its broker."""

from __future__ import annotations

import secrets
from pathlib import Path

from dejaq.testing.postgres import shared_server
from dejaq.testing.process import BrokerProcess

STORES = ("rocksdb", "postgres")


def broker_on(store: str, data: Path) -> BrokerProcess:
    """A broker that is not started yet; one on PostgreSQL has a schema of its own."""
    if store == "rocksdb":
        return BrokerProcess(data)
    cluster = f"chaos_{secrets.token_hex(4)}"
    return BrokerProcess(data, options=["--storage", shared_server().dsn, "--cluster", cluster])
