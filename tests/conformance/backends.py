"""Every backend under test, as a factory over one place."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

from dejaq.storage.base import Storage
from dejaq.storage.memory import MemoryStorage
from dejaq.testing.conformance import StorageFactory


def memory(path: Path) -> StorageFactory:
    """What the memory store holds lives in its object, so a restart is close and open of the same one."""
    storage = MemoryStorage(journal=True)
    return lambda: storage


def rocksdb(path: Path) -> StorageFactory:
    from dejaq.storage.rocksdb.store import RocksStorage

    def make() -> Storage:
        return RocksStorage(path, journal=True)

    return make


BACKENDS: dict[str, Callable[[Path], StorageFactory]] = {"memory": memory}
if importlib.util.find_spec("dejaq.storage.rocksdb.store") is not None:
    BACKENDS["rocksdb"] = rocksdb
