"""One change: it alters the topics in memory, and is written with its journal record in one batch.

An error between the two leaves memory ahead of the disk, and fails the store, which is then read again from the disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from dejaq.domain.context import CallContext
from dejaq.domain.topic import Durability
from dejaq.errors import DejaqError, StoreError
from dejaq.storage.outbox import Outbox
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.committer import Committer
from dejaq.storage.rocksdb.engine.database import Batch, new_batch
from dejaq.storage.rocksdb.timeline.levels.merger import Merger
from dejaq.storage.rocksdb.timeline.topic_state import TopicState

Result = TypeVar("Result")


class ChangeWriter:
    """Applies changes and writes them. `meet` takes faults of the disk, `fail` the reason why the store has failed."""

    def __init__(
        self,
        committer: Committer,
        outbox: Outbox | None,
        merger: Merger,
        meet: Callable[[StoreError], None],
        fail: Callable[[str], None],
    ) -> None:
        self._committer, self._outbox, self._merger = committer, outbox, merger
        self._meet, self._fail = meet, fail

    async def commit(
        self, states: Sequence[TopicState], now: int, context: CallContext, change: Callable[[Batch], Result]
    ) -> Result:
        """Apply one change to the state, write it, and wait until it is durable."""
        result, durable = self.apply(states, now, context, change)
        if durable is not None:
            await asyncio.shield(durable)
        return result

    def apply(
        self,
        states: Sequence[TopicState],
        now: int,
        context: CallContext,
        change: Callable[[Batch], Result],
        *,
        waits: bool = False,
        changes: int = 1,
    ) -> tuple[Result, asyncio.Future[None] | None]:
        """Apply one change to the state and write it; returns its result and what its caller has to wait for.

        The one change may be several `changes` that waited for each other.
        """
        batch = new_batch()
        for state in states:
            state.now = now
        try:
            result = change(batch)
        except StoreError as cause:
            self._meet(cause)
            raise
        except DejaqError:
            # The refused change wrote nothing; the leases that expired meanwhile remain recorded.
            with self.altering():
                self.write(states, batch, now, context)
            raise
        except BaseException as cause:
            # The state may be partly changed; it is read again from disk before the next request.
            self._fail(f"a change was only partly applied: {cause!r}")
            raise
        with self.altering():
            durable = self.write(states, batch, now, context, changes=changes)
        if durable is None and result is not None:
            # A refusal describes a state that a crash must not undo; the answer "nothing is due" does not.
            durable = self._committer.pending()
        waits |= any(state.topic.settings.durability is Durability.FSYNC for state in states)
        return result, durable if waits else None

    @contextmanager
    def altering(self) -> Iterator[None]:
        """Change memory and write it: an error in between leaves memory ahead of the disk, and fails the store."""
        try:
            yield
        except BaseException as cause:
            self._fail(f"a change was only partly applied: {cause!r}")
            raise

    def write(
        self, states: Sequence[TopicState], batch: Batch, now: int, context: CallContext, *, changes: int = 1
    ) -> asyncio.Future[None] | None:
        """Write the batch of a change, with its journal record; None when the batch is empty."""
        for state in states:
            state.write_counts(batch)
        self.put_record(batch, now, context)
        self._merger.changed(states, now)
        if not len(batch):
            return None
        return self._committer.write(batch, changes=changes)

    def put_record(self, batch: Batch, now: int, context: CallContext) -> None:
        """Put the journal record of what happened since the last one into the batch."""
        entry = self._outbox.take(now, context.principal) if self._outbox is not None else None
        if entry is not None:
            batch.put_frame(keys.journal_frame(entry[0]), entry[1])
