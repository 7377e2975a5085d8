"""A `dejaq serve` that cannot start prints one clear line and a next step, and exits with 1. G7, G8."""

from __future__ import annotations

import asyncio
import shutil
import socket
from pathlib import Path

import pytest

from dejaq.storage.rocksdb.engine.database import RocksDatabase
from dejaq.testing.servers.faults import FaultUnavailable, small_disk
from tests.acceptance.process import Done, dejaq, serve


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory that a stopped broker has used."""
    path = tmp_path / "data"
    with serve(path) as broker:
        assert dejaq("topic", "create", "mail", url=broker.url).code == 0
        broker.terminate()
        assert asyncio.run(broker.exited()) == 0
    return path


def refused(data: Path, *, listen: str = "127.0.0.1:0") -> Done:
    """The output of a broker that must not start."""
    return dejaq("serve", "--data", str(data), "--listen", listen)


def check(done: Done, code: str, *words: str) -> None:
    """The output has one line with the code and the subject, one line with the next step, and nothing else."""
    assert done.code == (5 if code in ("STORE_FAILED", "STORE_CORRUPT") else 1)
    assert done.out == ""
    line, next_step = done.err.splitlines()
    assert line.startswith("dejaq: ")
    assert line.endswith(f"[{code}]")
    for word in words:
        assert word in line
    assert next_step.startswith("  next: ")


def test_a_data_directory_that_another_broker_uses(tmp_path: Path) -> None:
    with serve(tmp_path / "data") as broker:
        check(refused(tmp_path / "data"), "STORE_LOCKED", str(tmp_path / "data"))
        assert dejaq("info", url=broker.url).code == 0, "the first broker continues"


def test_a_port_that_is_taken(data: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        check(refused(data, listen=address), "PORT_TAKEN", address)
    with serve(data) as broker:
        assert dejaq("info", url=broker.url).code == 0, "the directory was unlocked"


def test_a_port_that_another_broker_serves(tmp_path: Path) -> None:
    with serve() as broker:
        check(refused(tmp_path / "data", listen=broker.address), "PORT_TAKEN", broker.address)
        assert dejaq("info", url=broker.url).code == 0, "the first broker continues"


@pytest.mark.parametrize("part", ["db/CURRENT", "watermark"])
def test_a_damaged_data_directory(data: Path, part: str) -> None:
    (data / part).write_bytes(b"\0damaged\0")
    check(refused(data), "STORE_CORRUPT", str(data))


def test_a_data_directory_without_its_database(data: Path) -> None:
    shutil.rmtree(data / "db")
    check(refused(data), "STORE_CORRUPT", str(data))


def test_a_data_directory_of_a_newer_release(data: Path) -> None:
    database = RocksDatabase(data / "db")
    database._db[b"mformat"] = b"99"
    database.close()
    check(refused(data), "STORE_NEWER", str(data), "99")


def test_a_data_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    check(refused(tmp_path / "file" / "data"), "STORE_FAILED", str(tmp_path / "file"))


def test_a_data_directory_on_a_full_disk(tmp_path: Path) -> None:
    try:
        with small_disk(tmp_path / "small", 1 << 20) as disk:
            disk.fill()
            check(refused(disk.path / "data"), "STORE_FAILED", str(disk.path))
    except FaultUnavailable as reason:
        pytest.skip(str(reason))
