"""Synchronization inside one process: for a single broker nothing has to run, and tests put several on one hub."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from math import inf

from dejaq.errors import SynchronizationError
from dejaq.synchronization.base import Record, RecordChange


class Hub:
    """The records of one cluster whose brokers live in one process."""

    def __init__(self) -> None:
        self.records: dict[str, Record] = {}
        self.owners: dict[str, LocalSynchronization] = {}
        self._revision = 0
        self._watchers: dict[asyncio.Queue[list[RecordChange]], str] = {}

    def write(self, key: str, value: bytes) -> Record:
        """Put a record under the next revision."""
        self._revision += 1
        old = self.records.get(key)
        record = Record(
            key=key, value=value, token=old.token if old is not None else self._revision, revision=self._revision
        )
        self.records[key] = record
        self._publish(RecordChange(key, record))
        return record

    def erase(self, key: str) -> None:
        """Remove a record that is there."""
        self._revision += 1
        del self.records[key]
        self.owners.pop(key, None)
        self._publish(RecordChange(key, None))

    def under(self, prefix: str) -> list[Record]:
        """The records under a prefix, by key."""
        return [self.records[key] for key in sorted(self.records) if key.startswith(prefix)]

    def enlist(self, prefix: str) -> asyncio.Queue[list[RecordChange]]:
        """A queue that gets every change under `prefix` from now on."""
        queue: asyncio.Queue[list[RecordChange]] = asyncio.Queue()
        self._watchers[queue] = prefix
        return queue

    def dismiss(self, queue: asyncio.Queue[list[RecordChange]]) -> None:
        """Send no more changes to this queue."""
        self._watchers.pop(queue, None)

    def _publish(self, change: RecordChange) -> None:
        for queue, prefix in self._watchers.items():
            if change.key.startswith(prefix):
                queue.put_nowait([change])


class LocalSynchronization:
    """One member of a hub; by default the only one. Its membership never expires by itself."""

    name = "local"

    def __init__(self, hub: Hub | None = None) -> None:
        self._hub = hub if hub is not None else Hub()
        # What comes back after the membership was cut.
        self._bound: dict[str, bytes] = {}
        self._member = False
        self.failure: str | None = None
        self.full: str | None = None

    async def open(self) -> None:
        """Become a member."""
        self._member = True

    async def close(self) -> None:
        """Leave."""
        self._vanish()
        self._bound.clear()
        self._member = False

    def serving_until(self) -> float:
        """Without end, while it is a member."""
        return inf if self._member and self.failure is None else -inf

    def cut(self) -> None:
        """Lose the membership, as a broker does that could not renew it."""
        self._vanish()
        self.failure = "the membership was cut"

    def mend(self) -> None:
        """Become a member again."""
        self.failure = None
        for key, value in self._bound.items():
            if key not in self._hub.records:
                self._hub.owners[key] = self
                self._hub.write(key, value)

    def _vanish(self) -> None:
        for key in [key for key, owner in self._hub.owners.items() if owner is self]:
            self._hub.erase(key)

    def _check(self) -> None:
        if self.failure is not None or not self._member:
            raise SynchronizationError(self.failure or "it is not open")

    async def get(self, key: str) -> Record | None:
        """The record."""
        self._check()
        return self._hub.records.get(key)

    async def under(self, prefix: str) -> list[Record]:
        """The records under a prefix, by key."""
        self._check()
        return self._hub.under(prefix)

    async def put(
        self, key: str, value: bytes, *, expected: int | None = None, bound: bool = False, comes_back: bool = True
    ) -> Record | None:
        """Write a record; None when `expected` does not hold."""
        self._check()
        if not self._holds(key, expected):
            return None
        if bound:
            self._hub.owners[key] = self
            if comes_back:
                self._bound[key] = value
        return self._hub.write(key, value)

    async def put_bound(self, values: Mapping[str, bytes]) -> None:
        """Write bound records."""
        for key, value in values.items():
            await self.put(key, value, bound=True)

    async def remove(self, key: str, *, expected: int | None = None) -> bool:
        """Remove a record; False when it is not there or changed."""
        self._check()
        if key not in self._hub.records or not self._holds(key, expected):
            return False
        self._bound.pop(key, None)
        self._hub.erase(key)
        return True

    def _holds(self, key: str, expected: int | None) -> bool:
        record = self._hub.records.get(key)
        return expected is None or expected == (0 if record is None else record.revision)

    async def watch(self, prefix: str) -> AsyncIterator[list[RecordChange]]:
        """Every record, then every change."""
        queue = self._hub.enlist(prefix)
        try:
            yield [RecordChange(record.key, record) for record in self._hub.under(prefix)]
            while True:
                yield await queue.get()
        finally:
            self._hub.dismiss(queue)
