"""The logs of the embedded store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import islice

from dejaq import limits
from dejaq.domain.context import CallContext
from dejaq.domain.topic import Topic
from dejaq.errors import Code, Refused, error_of
from dejaq.storage.log.base import (
    MINUTE_MS,
    Append,
    Appended,
    BucketOffsets,
    CommittedOffset,
    LogName,
    LogRetention,
    LogSlice,
    MinuteCount,
    OffsetCommit,
    RolledBack,
    StoredBatch,
    check_bucket,
    check_offset,
    unknown_name,
)
from dejaq.storage.rocksdb.engine.committer import Committer
from dejaq.storage.rocksdb.engine.database import Batch, RocksDatabase, new_batch
from dejaq.storage.rocksdb.engine.starting import LOGS_FORMAT, raise_format
from dejaq.storage.rocksdb.log import reading, records, retaining
from dejaq.storage.rocksdb.log.appending import append
from dejaq.storage.rocksdb.log.state import LogBucket, LogState
from dejaq.storage.rocksdb.log.tail import LogTails

# Records that are read before other tasks run.
_MINUTES_PER_STEP = 200


class RocksLogs:
    """Implements `LogStorage`. `check` raises when the store does not work; `altering` fails it when a change stops
    half-way; `exists` says whether the store has a topic that takes messages.
    """

    def __init__(
        self,
        database: RocksDatabase,
        committer: Committer,
        *,
        next_number: Callable[[], int],
        check: Callable[[], None],
        altering: Callable[[], AbstractContextManager[None]],
        exists: Callable[[Topic], bool],
        tail_bytes: int = limits.LOG_TAIL_BYTES,
    ) -> None:
        self._database, self._committer = database, committer
        self._next_number, self._check, self._altering, self._exists = next_number, check, altering, exists
        self._tails = LogTails(tail_bytes)
        self._states: dict[int, LogState] = {}
        self._raised = False

    def _state(self, topic: Topic) -> LogState:
        self._check()
        if not self._exists(topic):
            raise error_of(Code.TOPIC_NOT_FOUND, f"topic {topic.name!r} does not exist or is being deleted")
        state = self._states.get(topic.number)
        if state is None:
            state = self._states[topic.number] = LogState(topic, self._database, self._tails)
        return state

    def _bucket(self, topic: Topic, bucket: int) -> tuple[LogState, LogBucket]:
        state = self._state(topic)
        check_bucket(topic, bucket)
        return state, state.buckets[bucket]

    async def _raise_format(self) -> None:
        """Make older releases refuse the directory, before it has a log: they would remove the files of the batches."""
        self._check()
        if not self._raised:
            await asyncio.to_thread(raise_format, self._database, LOGS_FORMAT)
            self._raised = True
            self._check()

    def drop(self, topic: Topic) -> None:
        """Forget a topic, whose records are removed."""
        self._states.pop(topic.number, None)

    def stats(self) -> dict[str, float]:
        """Numbers for the metrics."""
        return {"log_tail_bytes": self._tails.used}

    def _write(self, writes: Batch) -> asyncio.Future[None] | None:
        """Write a change; what to wait for, so that it, or else what it was decided on, is durable."""
        return self._committer.write(writes) if len(writes) else self._committer.pending()

    # Appending

    async def append(
        self, topic: Topic, batches: Sequence[Append], now: int, context: CallContext
    ) -> list[Appended | Refused]:
        """Append batches; readers see them when they are durable."""
        await self._raise_format()
        await self._committer.make_room()
        state, writes = self._state(topic), new_batch()
        with self._altering():
            answers = append(state, self._database, batches, now, writes)
            ends = {bucket.number: bucket.next for bucket in state.buckets if bucket.next > bucket.durable}
            durable = self._write(writes)
        if durable is not None:
            durable.add_done_callback(lambda done: _show(state, ends, done))
        await _until(durable)
        return answers

    async def rollback(self, topic: Topic, name: LogName, now: int, context: CallContext) -> RolledBack:
        """Take out a batch. Readers wait until that is durable, or the window has passed."""
        state = self._state(topic)
        value = self._database.get(records.name_key(topic.number, name))
        if value is None:
            raise unknown_name(topic, name)
        number, base, count, _ = records.unpack_name(value)
        bucket = state.buckets[number]
        found = state.entry_at(self._database, number, base)
        if found is not None and found[0].aborted:
            await _until(self._write(new_batch()))
            return RolledBack(number, base, count)
        window = bucket.window(base)
        if found is None or window is None or bucket.settle(now) > base:
            raise error_of(Code.TOO_LATE)
        writes = new_batch()
        with self._altering():
            window.leaving = True
            writes.put(records.batch_key(topic.number, number, base), records.aborted_value(*found))
            durable = self._committer.write(writes)
            durable.add_done_callback(lambda done: _take_out(bucket, base, done))
        await asyncio.shield(durable)
        return RolledBack(number, base, count)

    # Reading

    async def read(
        self, topic: Topic, bucket: int, start: int, *, end: int | None, bytes_max: int, committed: bool, now: int
    ) -> LogSlice:
        """The batches from an offset on."""
        state, held = self._bucket(topic, bucket)
        check_offset(topic, bucket, start, held.start, held.durable)
        stop = min(held.durable, held.settle(now)) if committed else held.durable
        stop = stop if end is None else min(stop, end)
        if start >= stop:
            return LogSlice((), start)
        tail = reading.read_tail(held, start, stop, bytes_max, committed=committed)
        if tail is not None:
            return tail
        return await reading.read_stored(state, self._database, held, start, stop, bytes_max, committed=committed)

    async def offsets(self, topic: Topic, now: int) -> list[BucketOffsets]:
        """The offsets of every bucket."""
        return [bucket.offsets(now) for bucket in self._state(topic).buckets]

    async def offset_for_time(self, topic: Topic, bucket: int, ts: int) -> int:
        """The first offset of a time."""
        state, held = self._bucket(topic, bucket)
        return reading.offset_for_time(state, self._database, held, ts)

    async def minutes(self, topic: Topic, bucket: int, start: int, end: int) -> list[MinuteCount]:
        """The minutes of a range of times."""
        self._bucket(topic, bucket)
        stop = records.minute_key(topic.number, bucket, -(-min(max(end, 0), limits.TS_MS_MAX) // MINUTE_MS))
        key = records.minute_key(topic.number, bucket, min(max(start, 0), limits.TS_MS_MAX) // MINUTE_MS)
        found: list[MinuteCount] = []
        while True:
            step = list(islice(self._database.scan(key, stop), _MINUTES_PER_STEP))
            found += (records.unpack_minute(*item) for item in step)
            if len(step) < _MINUTES_PER_STEP:
                return found
            key = step[-1][0] + b"\0"
            await asyncio.sleep(0)
            self._check()

    # Groups

    def _group(self, state: LogState, name: str) -> dict[int, CommittedOffset]:
        """What a group has; a new group is one of the log when something is written for it."""
        found = state.groups.get(name)
        if found is None:
            if len(state.groups) >= limits.LOG_GROUPS_MAX:
                raise error_of(Code.LIMIT_EXCEEDED, f"a log has at most {limits.LOG_GROUPS_MAX} groups; remove one")
            return {}
        return found

    def _put(self, state: LogState, group: str, bucket: int, offset: CommittedOffset, writes: Batch) -> None:
        state.groups.setdefault(group, {})[bucket] = offset
        writes.put(records.offset_key(state.topic.number, bucket, group), records.pack_offset(offset))

    async def claim(
        self, topic: Topic, group: str, buckets: Sequence[int], now: int, context: CallContext
    ) -> tuple[int, Mapping[int, int]]:
        """Claim buckets for a member."""
        state = self._state(topic)
        for bucket in buckets:
            check_bucket(topic, bucket)
        offsets, number, writes = self._group(state, group), self._next_number(), new_batch()
        with self._altering():
            for bucket in buckets:
                offset = offsets[bucket].offset if bucket in offsets else -1
                self._put(state, group, bucket, CommittedOffset(offset, number, now), writes)
            held = state.groups.get(group, {})
            claimed = {bucket: held[bucket].offset for bucket in buckets if held[bucket].offset >= 0}
            waiting = self._write(writes)
        await _until(waiting)
        return number, claimed

    async def commit(
        self, topic: Topic, group: str, commits: Sequence[OffsetCommit], now: int, context: CallContext
    ) -> list[Code]:
        """Write what a group has read."""
        state = self._state(topic)
        for one in commits:
            check_bucket(topic, one.bucket)
        offsets, writes = self._group(state, group), new_batch()
        codes = []
        with self._altering():
            for one in commits:
                current = offsets.get(one.bucket)
                if one.claim != (current.claim if current is not None else 0):
                    codes.append(Code.CLAIM_LOST)
                elif not 0 <= one.offset <= state.buckets[one.bucket].durable:
                    codes.append(Code.OFFSET_OUT_OF_RANGE)
                else:
                    self._put(state, group, one.bucket, CommittedOffset(one.offset, one.claim, now), writes)
                    codes.append(Code.OK)
            waiting = self._write(writes)
        await _until(waiting)
        return codes

    async def reset(self, topic: Topic, group: str, offsets: Mapping[int, int], now: int, context: CallContext) -> None:
        """Set the offsets of a group."""
        state = self._state(topic)
        for bucket, offset in offsets.items():
            check_bucket(topic, bucket)
            check_offset(topic, bucket, offset, 0, state.buckets[bucket].durable)
        self._group(state, group)
        number, writes = self._next_number(), new_batch()
        with self._altering():
            for bucket, offset in offsets.items():
                self._put(state, group, bucket, CommittedOffset(offset, number, now), writes)
            waiting = self._write(writes)
        await _until(waiting)

    async def groups(self, topic: Topic) -> dict[str, dict[int, CommittedOffset]]:
        """Every group."""
        return {name: dict(offsets) for name, offsets in self._state(topic).groups.items()}

    async def remove_group(self, topic: Topic, group: str, context: CallContext) -> bool:
        """Forget a group."""
        state, writes = self._state(topic), new_batch()
        offsets = state.groups.get(group)
        if offsets is None:
            return False
        with self._altering():
            del state.groups[group]
            for bucket in offsets:
                writes.delete(records.offset_key(topic.number, bucket, group))
            waiting = self._write(writes)
        await _until(waiting)
        return True

    # LogRetention

    async def retain(self, topic: Topic, retention: LogRetention, now: int, context: CallContext) -> int:
        """Remove the oldest batches, at most a hundred of each bucket."""
        state, removed = self._state(topic), 0
        for bucket in state.buckets:
            writes = new_batch()
            with self._altering():
                removed += retaining.remove_oldest(state, self._database, bucket, retention, now, writes)
                if len(writes):
                    self._committer.write(writes)
            await asyncio.sleep(0)
            self._state(topic)
        writes = new_batch()
        with self._altering():
            retaining.forget_sessions(state, self._database, now, writes)
            waiting = self._write(writes)
        await _until(waiting)
        return removed


async def _until(durable: asyncio.Future[None] | None) -> None:
    if durable is not None:
        await asyncio.shield(durable)


def _show(state: LogState, ends: Mapping[int, int], done: asyncio.Future[None]) -> None:
    """Let readers see what is durable."""
    if not done.cancelled() and done.exception() is None:
        for bucket, end in ends.items():
            state.buckets[bucket].durable = max(state.buckets[bucket].durable, end)


def _take_out(bucket: LogBucket, base: int, done: asyncio.Future[None]) -> None:
    """Let readers pass a batch whose rollback is durable."""
    if done.cancelled() or done.exception() is not None:
        return
    window = bucket.window(base)
    if window is not None:
        bucket.windows.remove(window)
    place = bucket.tail.first_of(base)
    batch = bucket.tail.at(place) if place is not None else None
    if batch is not None:
        bucket.tail.replace(StoredBatch(batch.base, batch.count, batch.ts, batch.records, aborted=True))
