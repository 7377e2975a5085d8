"""Every backend under test, as a factory over one place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dejaq.storage.base import Storage
from dejaq.storage.memory import MemoryStorage
from dejaq.storage.rocksdb import merging
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.testing.conformance import StorageFactory
from dejaq.testing.postgres import FreshStorage, shared_server
from dejaq.testing.shards import two_shards


def memory(path: Path) -> StorageFactory:
    """What the memory store holds lives in its object, so a restart is close and open of the same one."""
    storage = MemoryStorage(journal=True)
    return lambda: storage


def rocksdb(path: Path) -> StorageFactory:
    """The embedded store."""

    def make() -> Storage:
        return RocksStorage(path, journal=True)

    return make


def merge_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the embedded store merge the runs of a priority topic at every lease, into runs of few rows."""
    for name, value in {"PARTS_MIN": 1, "FEW_ROWS": 1_000, "RUNS_MIN": 1, "MERGED_ROWS": 3}.items():
        monkeypatch.setattr(merging, name, value)


def rocksdb_on_disk(path: Path) -> StorageFactory:
    """The embedded store without room in memory: every row is read when it is due, and most ids are looked up."""

    def make() -> Storage:
        return RocksStorage(path, journal=True, window_bytes=1, young_ids=3)

    return make


def postgres(path: Path) -> StorageFactory:
    """The shared store, in a schema that is empty at first."""
    server, place = shared_server(), dict[str, bool]()

    def make() -> Storage:
        return FreshStorage(place, server.dsn, cluster="conformance", journal="conformance", connections=4)

    return make


def sharded(path: Path) -> StorageFactory:
    """Two shared stores as one, in schemas that are empty at first."""
    return two_shards(cluster="conformance", journal="conformance", connections=4)


BACKENDS: dict[str, Callable[[Path], StorageFactory]] = {
    "memory": memory,
    "rocksdb": rocksdb,
    "rocksdb_on_disk": rocksdb_on_disk,
    "postgres": postgres,
    "sharded": sharded,
}
