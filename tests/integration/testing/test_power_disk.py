"""The file system that loses what was not synced: what it must keep, and what it must lose."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dejaq.directories import make_directory, sync_directory
from dejaq.testing.power.disk import PowerDisk
from dejaq.testing.servers.faults import FaultUnavailable
from dejaq.testing.servers.process import BrokerProcess

SEED = 7


class NoBroker(BrokerProcess):
    """A broker that never ran."""

    async def exited(self, *, within: float = 0.0) -> int:
        return 0


@pytest.fixture
async def disk(tmp_path: Path) -> AsyncIterator[PowerDisk]:
    try:
        async with PowerDisk(tmp_path / "disk", seed=SEED) as mounted:
            yield mounted
    except FaultUnavailable as reason:
        pytest.skip(str(reason))


async def cut(disk: PowerDisk, *, keep_some: bool = False) -> None:
    await disk.cut()
    await disk.restore(NoBroker(), keep_some=keep_some)


def write(path: Path, content: bytes, *, sync: bool) -> None:
    with path.open("wb", buffering=0) as file:
        file.write(content)
        if sync:
            os.fsync(file.fileno())


def contents(path: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in path.iterdir()}


async def test_a_file_is_kept_when_it_and_its_directory_were_synced(disk: PowerDisk) -> None:
    def work() -> None:
        write(disk.path / "kept", b"synced", sync=True)
        write(disk.path / "without content", b"not synced", sync=False)
        sync_directory(disk.path)
        write(disk.path / "without a name", b"synced", sync=True)
        with (disk.path / "kept").open("ab") as file:
            file.write(b", and more that is not")

    await asyncio.to_thread(work)
    await cut(disk)
    assert await asyncio.to_thread(contents, disk.path) == {"kept": b"synced", "without content": b""}


async def test_a_rename_is_done_as_a_whole_or_not_at_all(disk: PowerDisk) -> None:
    def work() -> None:
        write(disk.path / "mark", b"before", sync=True)
        sync_directory(disk.path)
        write(disk.path / "mark.new", b"after", sync=True)
        (disk.path / "mark.new").rename(disk.path / "mark")

    await asyncio.to_thread(work)
    assert await asyncio.to_thread(contents, disk.path) == {"mark": b"after"}
    await cut(disk)
    assert await asyncio.to_thread(contents, disk.path) == {"mark": b"before"}


async def test_pages_that_were_not_synced_may_be_torn(disk: PowerDisk) -> None:
    found: set[bytes] = set()
    for number in range(10):
        name = disk.path / str(number)
        await asyncio.to_thread(write, name, b"", sync=True)
        await asyncio.to_thread(sync_directory, disk.path)
        await asyncio.to_thread(write, name, b"x" * 20_000, sync=False)
        await cut(disk, keep_some=True)
        found.add(await asyncio.to_thread(name.read_bytes))
    assert len(found) > 2
    assert any(0 < content.count(b"x") < 20_000 for content in found)


async def test_after_a_number_of_changes_nothing_is_answered(disk: PowerDisk) -> None:
    def work() -> None:
        while True:
            write(disk.path / "file", b"a", sync=True)

    writing = asyncio.create_task(asyncio.to_thread(work))
    await disk.cut(after=5)
    assert not writing.done(), "the disk failed instead of being silent"
    await disk.restore(NoBroker())
    with pytest.raises(OSError, match="onnect"):
        await writing
    assert await asyncio.to_thread(contents, disk.path) == {}


async def test_a_directory_that_was_made_survives_with_those_above_it(disk: PowerDisk) -> None:
    """G1: otherwise all that a broker acknowledged in a new data directory could be lost with the directory."""
    await asyncio.to_thread(make_directory, disk.path / "var" / "lib" / "data")
    await cut(disk)
    assert await asyncio.to_thread((disk.path / "var" / "lib" / "data").is_dir)


async def test_a_directory_that_another_process_made_is_made_durable_too(disk: PowerDisk) -> None:
    await asyncio.to_thread((disk.path / "data").mkdir)
    await asyncio.to_thread(make_directory, disk.path / "data")
    await cut(disk)
    assert await asyncio.to_thread((disk.path / "data").is_dir)
