"""Checks of watches: a watch reports all records first, then every change, in order and without a gap."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from dejaq.synchronization.base import RecordChange, Synchronization
from dejaq.testing.synchronization.stage import ClusterScene

SECONDS = 20.0


class _Watcher:
    """Collects the reports of a watch."""

    def __init__(self, place: Synchronization, prefix: str) -> None:
        self.changes: list[RecordChange] = []
        self.told = asyncio.Event()
        self._began = asyncio.Event()
        self._task = asyncio.create_task(self._read(place.watch(prefix)))

    async def _read(self, watch: AsyncIterator[list[RecordChange]]) -> None:
        async for changes in watch:
            self.changes += changes
            self._began.set()
            self.told.set()

    async def began(self) -> None:
        async with asyncio.timeout(SECONDS):
            await self._began.wait()

    async def until(self, key: str, value: bytes | None) -> None:
        """Wait until the last reported value of `key` is this."""
        async with asyncio.timeout(SECONDS):
            while True:
                self.told.clear()
                last = [change for change in self.changes if change.key == key][-1:]
                if last and (None if last[0].record is None else last[0].record.value) == value:
                    return
                await self.told.wait()

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.wait((self._task,))


async def a_watch_begins_with_what_is_there(scene: ClusterScene) -> None:
    """The first report of a watch is every record under the prefix, also when there is none."""
    place = await scene.place()
    await place.put("members/a", b"1")
    await place.put("other/a", b"1")
    watcher, empty = _Watcher(place, "members/"), _Watcher(place, "nothing/")
    try:
        await watcher.began()
        await empty.began()
        assert [(change.key, change.record and change.record.value) for change in watcher.changes] == [
            ("members/a", b"1")
        ]
        assert empty.changes == []
    finally:
        await watcher.end()
        await empty.end()


async def a_watch_tells_every_change_in_order(scene: ClusterScene) -> None:
    """Each change of another member is reported once and in its order, including removals."""
    one, other = await scene.place(), await scene.place()
    watcher = _Watcher(one, "n/")
    try:
        await watcher.began()
        for number in range(100):
            await other.put("n/x", str(number).encode())
        await other.remove("n/x")
        await watcher.until("n/x", None)
        values = [change.record.value for change in watcher.changes if change.record is not None]
        assert values == [str(number).encode() for number in range(100)]
        revisions = [change.record.revision for change in watcher.changes if change.record is not None]
        assert revisions == sorted(set(revisions))
    finally:
        await watcher.end()


async def a_watch_goes_on_after_an_outage(scene: ClusterScene) -> None:
    """Changes that happen while the watcher is disconnected are reported after it reconnects: none is missed."""
    member, other = await scene.join(), await scene.place()
    watcher = _Watcher(member.place, "n/")
    try:
        await watcher.began()
        await other.put("n/a", b"before")
        await watcher.until("n/a", b"before")
        member.cut()
        for number in range(10):
            await other.put("n/a", str(number).encode())
        await other.put("n/gone", b"short")
        await other.remove("n/gone")
        member.mend()
        await watcher.until("n/a", b"9")
        told = [change.record.value for change in watcher.changes if change.key == "n/a" and change.record is not None]
        assert told == [b"before", *(str(number).encode() for number in range(10))]
    finally:
        await watcher.end()
