"""Every storage with logs passes every check of the conformance suite for logs."""

from pathlib import Path

import pytest

from dejaq.storage.rocksdb.engine.engine import LogSizes
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.testing.conformance import StorageFactory
from dejaq.testing.conformance.logs import LOG_CHECKS, Check
from tests.conformance.backends import encrypted, memory, postgres, rocksdb, sharded
from tests.conformance.segments import rocksdb_segments


def without_tail(path: Path) -> StorageFactory:
    """The embedded store, which reads every batch from disk, and empties files of its commit log all the time."""

    def make() -> RocksStorage:
        sizes = LogSizes(file_bytes=512, flush_bytes=256, bytes_max=1_024)
        return RocksStorage(path, log=sizes, log_tail_bytes=0)

    return make


BACKENDS = {
    "memory": memory,
    "rocksdb": rocksdb,
    "rocksdb_without_tail": without_tail,
    "rocksdb_segments": rocksdb_segments,
    "postgres": postgres,
    "sharded": sharded,
    "encrypted_memory": encrypted(memory),
    "encrypted_rocksdb": encrypted(rocksdb),
    "encrypted_segments": encrypted(rocksdb_segments),
}


# These expect the bytes of batches as they were given; sealed batches have 36 more.
OF_PLAIN_BYTES = frozenset(
    {
        "reading.a_read_has_a_limit",
        "reading.minutes_are_counted",
        "retaining.a_log_has_a_size",
        "retaining.old_batches_are_removed",
        "surviving.retention_survives",
    }
)


def checks_of(backend: str) -> list[Check]:
    """The checks that a backend runs."""
    sealed = backend.startswith("encrypted_")
    return [check for check in LOG_CHECKS if not sealed or check.name not in OF_PLAIN_BYTES]


@pytest.mark.parametrize(
    ("backend", "check"),
    [
        pytest.param(backend, check, id=f"{backend}-{check.name}")
        for backend in BACKENDS
        for check in checks_of(backend)
    ],
)
async def test_logs(backend: str, check: Check, tmp_path: Path) -> None:
    await check.run(BACKENDS[backend](tmp_path / "store"))


def test_only_known_checks_are_left_out_with_sealed_batches() -> None:
    assert {check.name for check in LOG_CHECKS} >= OF_PLAIN_BYTES


def test_every_check_has_a_description() -> None:
    assert len({check.name for check in LOG_CHECKS}) == len(LOG_CHECKS)
    assert [check.name for check in LOG_CHECKS if not check.about.rstrip().endswith(".")] == []
