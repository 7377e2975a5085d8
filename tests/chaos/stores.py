"""Brokers on each store that keeps its messages when the broker is killed."""

from __future__ import annotations

import secrets
from pathlib import Path

from dejaq.testing.servers.postgres import shared_server
from dejaq.testing.servers.process import BrokerProcess

STORES = ("rocksdb", "postgres")


def broker_on(store: str, data: Path) -> BrokerProcess:
    """A broker that is not started yet; a broker on PostgreSQL has a schema of its own."""
    if store == "rocksdb":
        return BrokerProcess(data)
    cluster = f"chaos_{secrets.token_hex(4)}"
    return BrokerProcess(data, options=["--storage", shared_server().dsn, "--cluster", cluster])
