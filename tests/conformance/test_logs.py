"""Every storage with logs passes every check of the conformance suite for logs."""

from pathlib import Path

import pytest

from dejaq.storage.rocksdb.engine.engine import LogSizes
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.testing.conformance import StorageFactory
from dejaq.testing.conformance.logs import LOG_CHECKS, Check
from tests.conformance.backends import memory, postgres, rocksdb, sharded


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
    "postgres": postgres,
    "sharded": sharded,
}


@pytest.mark.parametrize("check", LOG_CHECKS, ids=lambda check: check.name)
@pytest.mark.parametrize("backend", BACKENDS)
async def test_logs(backend: str, check: Check, tmp_path: Path) -> None:
    await check.run(BACKENDS[backend](tmp_path / "store"))


def test_every_check_has_a_description() -> None:
    assert len({check.name for check in LOG_CHECKS}) == len(LOG_CHECKS)
    assert [check.name for check in LOG_CHECKS if not check.about.rstrip().endswith(".")] == []
