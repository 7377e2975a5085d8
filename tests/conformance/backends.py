"""A factory for each storage backend; every call of a factory opens the same data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from dejaq.domain.batch import Outcomes
from dejaq.domain.changes import Change
from dejaq.domain.context import CallContext
from dejaq.domain.topic import Topic
from dejaq.errors import Refused
from dejaq.storage.base import Storage
from dejaq.storage.encrypted.providers.base import KeyProvider
from dejaq.storage.encrypted.providers.listed import ListedKeys, new_key_line
from dejaq.storage.encrypted.store import EncryptedStorage
from dejaq.storage.memory.store import MemoryStorage
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.storage.rocksdb.timeline.levels.settings import LevelSettings
from dejaq.storage.value_ciphers import SealsValues
from dejaq.testing.conformance import StorageFactory
from dejaq.testing.servers.postgres import FreshStorage, shared_server
from dejaq.testing.servers.shards import two_shards


def memory(path: Path) -> StorageFactory:
    """The memory store keeps its messages in its object, so a restart closes and opens the same object."""
    storage = MemoryStorage(journal=True)
    return lambda: storage


def rocksdb(path: Path) -> StorageFactory:
    """The embedded store."""

    def make() -> Storage:
        return RocksStorage(path, journal=True)

    return make


def rocksdb_on_disk(path: Path) -> StorageFactory:
    """The embedded store without caches: it reads every row from disk when the row is due, and most ids too."""

    def make() -> Storage:
        return RocksStorage(path, journal=True, window_bytes=1, young_ids=3)

    return make


def rocksdb_levels(path: Path) -> StorageFactory:
    """The embedded store with wide runs of few rows, which are merged after each change."""
    levels = LevelSettings(
        cell_rows=1_000,
        wide_rows_min=2,
        near_ms=0,
        merge_runs=1,
        merge_runs_max=4,
        near_runs=1,
        ending_ms=-60_000,
        piece_rows=3,
    )

    def make() -> Storage:
        return Merging(path, journal=True, levels=levels)

    return make


class Merging(RocksStorage):
    """Merges everything after each change, and begins to after each lease."""

    async def apply(self, changes: Sequence[Change], now: int, context: CallContext) -> list[Outcomes | Refused]:
        answers = await super().apply(changes, now, context)
        await self.merger.settle()
        return answers


def postgres(path: Path) -> StorageFactory:
    """The PostgreSQL store, in a new schema."""
    server, place = shared_server(), dict[str, bool]()

    def make() -> Storage:
        return FreshStorage(place, server.dsn, cluster="conformance", journal="conformance", connections=4)

    return make


def sharded(path: Path) -> StorageFactory:
    """Two PostgreSQL stores as the shards of one store, in new schemas."""
    return two_shards(cluster="conformance", journal="conformance", connections=4)


class EncryptsEverything(EncryptedStorage):
    """Encrypts the bodies of every topic, so that every check runs on sealed bodies."""

    def _encrypts(self, topic: Topic) -> bool:
        return True


class EncryptsHeaders(EncryptsEverything):
    """Encrypts the headers of every topic too."""

    def __init__(self, inner: Storage, provider: KeyProvider) -> None:
        super().__init__(inner, provider)
        if not isinstance(inner, SealsValues):
            setattr(self._keyring, "seals_headers", lambda topic: True)  # noqa: B010 - a method, for this instance


def encrypted(
    backend: Callable[[Path], StorageFactory], kind: type[EncryptedStorage] = EncryptsEverything
) -> Callable[[Path], StorageFactory]:
    """Another backend that sees only sealed bodies."""
    line = new_key_line("test")
    keys = ListedKeys(lambda: line, source="the test")

    def of(path: Path) -> StorageFactory:
        make = backend(path)
        return lambda: kind(make(), keys)

    return of


BACKENDS: dict[str, Callable[[Path], StorageFactory]] = {
    "memory": memory,
    "rocksdb": rocksdb,
    "rocksdb_on_disk": rocksdb_on_disk,
    "rocksdb_levels": rocksdb_levels,
    "postgres": postgres,
    "sharded": sharded,
}
ENCRYPTED: dict[str, Callable[[Path], StorageFactory]] = {
    "encrypted_memory": encrypted(memory, EncryptsHeaders),
    "encrypted_rocksdb": encrypted(rocksdb_on_disk, EncryptsHeaders),
    "encrypted_postgres": encrypted(postgres),
}
