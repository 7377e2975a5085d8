"""The logs of the embedded store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
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
    check_bucket,
    check_offset,
    unknown_name,
)
from dejaq.storage.log.prepared import PreparedState, PreparedTransaction, check_answer, check_of
from dejaq.storage.rocksdb.engine.committer import Committer
from dejaq.storage.rocksdb.engine.database import Batch, RocksDatabase, new_batch
from dejaq.storage.rocksdb.engine.log_keeper import LogKeeper
from dejaq.storage.rocksdb.engine.starting import LOGS_FORMAT, raise_format
from dejaq.storage.rocksdb.log import preparing, reading, reading_segments, records, retaining, trimming
from dejaq.storage.rocksdb.log.appending import append
from dejaq.storage.rocksdb.log.opening import OpenedSegments
from dejaq.storage.rocksdb.log.segment_keeper import SegmentKeeper
from dejaq.storage.rocksdb.log.state import LogBucket, LogState, LogStates
from dejaq.storage.rocksdb.log.tail import LogTails
from dejaq.storage.segments.writer import LogSegment
from dejaq.storage.transactions import LogAppendStep, LogStep, Verdict, first_refused

# Records that are read before other tasks run.
_MINUTES_PER_STEP = 200
# Buckets whose offsets are collected, and groups that are copied, before other tasks run.
_BUCKETS_PER_STEP, _GROUPS_PER_STEP = 256, 64


class RocksLogs:
    """Implements `LogStorage`. `check` raises when the store does not work; `altering` fails it when a change stops
    half-way; `topic_of` is the topic of a number, if it takes messages.
    """

    def __init__(
        self,
        database: RocksDatabase,
        committer: Committer,
        opened: OpenedSegments,
        keeper: LogKeeper,
        *,
        next_number: Callable[[], int],
        check: Callable[[], None],
        altering: Callable[[], AbstractContextManager[None]],
        topic_of: Callable[[int], Topic | None],
        tail_bytes: int = limits.LOG_TAIL_BYTES,
    ) -> None:
        self._database, self._committer = database, committer
        self._next_number, self._check, self._altering = next_number, check, altering
        self._tails = LogTails(tail_bytes)
        self._states = LogStates(database, self._tails, check=check, topic_of=topic_of)
        self._raised = False
        self._prepared = preparing.load(database)
        self.segments = SegmentKeeper(
            *(database, committer, opened, keeper),
            state_of=self._states.find,
            check=check,
            altering=altering,
            on_failure=database.on_fault,
        )

    def _state(self, topic: Topic) -> LogState:
        return self._states.of(topic)

    async def _bucket(self, topic: Topic, bucket: int) -> tuple[LogState, LogBucket]:
        state = await self._states.load(topic)
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
        self._states.drop(topic.number)
        for key in [key for key in self._prepared.records if key[0] == topic.number]:
            del self._prepared.records[key]

    def stats(self) -> dict[str, float]:
        """Numbers for the metrics."""
        return {"log_tail_bytes": self._tails.used, **self.segments.stats()}

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
        state, writes = await self._states.load(topic), new_batch()
        with self._altering():
            answers = append(state, self._database, batches, now, writes)
            durable = self._write(writes)
        _show_when(state, durable)
        await _until(durable)
        for one in {batch.bucket for batch in batches if 0 <= batch.bucket < len(state.buckets)}:
            self.segments.look(state, state.buckets[one], now)
        return answers

    # Transactions

    async def make_ready(self, steps: Sequence[LogStep]) -> None:
        """Do what must be done before the steps of a transaction are decided."""
        if steps:
            await self._raise_format()
            await self._committer.make_room()
            for topic in {step.topic.number: step.topic for step in steps}.values():
                await self._states.load(topic)

    def decide(self, step: LogStep, number: int, now: int) -> Verdict | None:
        """The refusal of a step of a transaction; None when it is allowed."""
        state = self._state(step.topic)
        if isinstance(step, LogAppendStep):
            code = step.refusal(now)
            return None if code is None else Verdict(code, number)
        return first_refused(self._decide(state, step.group, step.commits), number)

    def put(self, step: LogStep, now: int, writes: Batch) -> None:
        """Put a step that is allowed into `writes`."""
        state = self._state(step.topic)
        if isinstance(step, LogAppendStep):
            (answer,) = append(state, self._database, [step.batch], now, writes)
            if isinstance(answer, Refused):
                raise RuntimeError(f"an append that was allowed was refused: {answer}")
            return
        for one in step.commits:
            self._put(state, step.group, one.bucket, CommittedOffset(one.offset, one.claim, now), writes)

    async def prepare(
        self,
        topic: Topic,
        name: str,
        steps: Sequence[LogStep],
        deadline: int,
        now: int,
        context: CallContext,
        check: int = 0,
    ) -> Verdict:
        """Store steps under a name."""
        check = check or check_of(steps)
        await self.make_ready(steps)
        await self._states.load(topic)
        if self._prepared.is_repeat(topic, name, check):
            await _until(self._committer.pending())
            return Verdict(Code.ALREADY_EXISTS)
        for number, step in enumerate(steps):
            refusal = self.decide(step, number, now)
            if refusal is not None:
                return refusal
        states, writes = {step.topic.number: self._state(step.topic) for step in steps}, new_batch()
        with self._altering():
            places = preparing.put_appends(states, self._database, steps, now, writes)
            record = PreparedTransaction.of(name, steps, places, deadline_ms=deadline, now=now, check=check)
            preparing.put_record(self._prepared, topic, record, now, writes)
            durable = self._committer.write(writes)
        await self.until_shown(steps, durable)
        return Verdict()

    async def resolve(
        self, topic: Topic, name: str, *, commit: bool, now: int, context: CallContext
    ) -> PreparedTransaction:
        """Commit or abort a prepared transaction. Readers wait until that is durable."""
        await self._states.load(topic)
        return await self._resolve(topic, name, commit=commit, now=now)

    async def abort_all(self, topic: Topic, now: int) -> None:
        """Abort what is in doubt in a log that will be dropped: it holds batches and offsets of other logs too."""
        for one in self._prepared.in_doubt(topic.number):
            await self._resolve(topic, one.name, commit=False, now=now)

    async def _resolve(self, topic: Topic, name: str, *, commit: bool, now: int) -> PreparedTransaction:
        known = self._prepared.found(topic, name)
        record = known.resolved(commit=commit, now=now)
        if record is None:
            await _until(self._committer.pending())
            return known
        writes, aborted = new_batch(), record.state is PreparedState.ABORTED
        # The states of other logs are read now: before this they may not have been used since the start.
        states = {one.topic: state for one in record.batches if (state := self._states.find(one.topic)) is not None}
        for batch in record.batches:
            if batch.topic in states:
                await states[batch.topic].buckets[batch.bucket].read_windows(batch.base + 1)
        if self._prepared.found(topic, name) is not known:
            # It was resolved meanwhile.
            return await self._resolve(topic, name, commit=commit, now=now)
        with self._altering():
            waiting = preparing.resolve_batches(states, self._database, record, writes)
            for one in () if aborted else record.commits:
                held = self._states.find(one.topic)
                if held is not None:
                    self._put(held, one.group, one.bucket, CommittedOffset(one.offset, one.claim, now), writes)
            preparing.put_record(self._prepared, topic, record, now, writes)
            durable = self._committer.write(writes)
            preparing.let_pass(waiting, durable, aborted=aborted)
        await _until(durable)
        check_answer(record, commit=commit)
        return record

    async def in_doubt(self, topic: Topic) -> list[PreparedTransaction]:
        """The transactions of a log that are not resolved."""
        await self._states.load(topic)
        return self._prepared.in_doubt(topic.number)

    async def until_shown(self, steps: Sequence[LogStep], durable: asyncio.Future[None] | None) -> None:
        """Wait until a transaction is durable; readers see what it has appended from then on."""
        for topic in {step.topic.number for step in steps}:
            state = self._states.known(topic)
            if state is not None:
                _show_when(state, durable)
        await _until(durable)

    async def rollback(self, topic: Topic, name: LogName, now: int, context: CallContext) -> RolledBack:
        """Take out a batch. Readers wait until that is durable, or the window has passed."""
        state = await self._states.load(topic)
        value = self._database.get(records.name_key(topic.number, name))
        if value is None:
            raise unknown_name(topic, name)
        number, base, count, _ = records.unpack_name(value)
        bucket = state.buckets[number]
        await bucket.read_windows(base + 1)
        self._check()
        found = state.entry_at(self._database, number, base)
        if found is None:
            report = partial(self._states.report, topic)
            moved = await reading_segments.batch_at(self.segments.files, bucket, base, report)
            aborted = moved is not None and moved.aborted
        else:
            aborted = found[0].aborted
        if aborted:
            await _until(self._write(new_batch()))
            return RolledBack(number, base, count)
        window = bucket.window(base)
        if found is None or window is None or bucket.settle(now) > base:
            raise error_of(Code.TOO_LATE)
        writes = new_batch()
        with self._altering():
            window.leaving = True
            writes.put(records.batch_key(topic.number, number, base), records.resolved_value(*found, aborted=True))
            durable = self._committer.write(writes)
            preparing.let_pass([(bucket, base)], durable, aborted=True)
        await asyncio.shield(durable)
        return RolledBack(number, base, count)

    # Reading

    async def read(
        self, topic: Topic, bucket: int, start: int, *, end: int | None, bytes_max: int, committed: bool, now: int
    ) -> LogSlice:
        """The batches from an offset on."""
        state, held = await self._bucket(topic, bucket)
        check_offset(topic, bucket, start, held.start, held.durable)
        stop = min(held.durable, await held.settled(now)) if committed else held.durable
        stop = stop if end is None else min(stop, end)
        if start >= stop:
            return LogSlice((), start)
        if (tail := reading.read_tail(held, start, stop, bytes_max, committed=committed)) is not None:
            return tail
        if start < held.border:
            return await reading_segments.read(
                *(state, self.segments.files, held, start, stop, bytes_max),
                committed=committed,
                on_fault=partial(self._states.report, topic),
            )
        return await reading.read_stored(state, self._database, held, start, stop, bytes_max, committed=committed)

    async def offsets(self, topic: Topic, now: int) -> list[BucketOffsets]:
        """The offsets of every bucket."""
        found = []
        for number, bucket in enumerate((await self._states.load(topic)).buckets, start=1):
            found.append(await bucket.offsets(now))
            if number % _BUCKETS_PER_STEP == 0:
                await asyncio.sleep(0)
        return found

    async def offset_for_time(self, topic: Topic, bucket: int, ts: int) -> int:
        """The first offset of a time."""
        state, held = await self._bucket(topic, bucket)
        report = partial(self._states.report, topic)
        found = await reading_segments.offset_for_time(self.segments.files, held, ts, report)
        return reading.offset_for_time(state, self._database, held, ts) if found is None else found

    async def minutes(self, topic: Topic, bucket: int, start: int, end: int) -> list[MinuteCount]:
        """The minutes of a range of times."""
        await self._bucket(topic, bucket)
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
        state = await self._states.load(topic)
        for bucket in buckets:
            check_bucket(topic, bucket)
        self._prepared.check_free(topic.number, group, buckets)
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
        state, writes = await self._states.load(topic), new_batch()
        codes = self._decide(state, group, commits)
        with self._altering():
            for one, code in zip(commits, codes, strict=True):
                if code is Code.OK:
                    self._put(state, group, one.bucket, CommittedOffset(one.offset, one.claim, now), writes)
            waiting = self._write(writes)
        await _until(waiting)
        return codes

    def _decide(self, state: LogState, group: str, commits: Sequence[OffsetCommit]) -> list[Code]:
        """The outcome of each commit."""
        for one in commits:
            check_bucket(state.topic, one.bucket)
        self._prepared.check_free(state.topic.number, group, [one.bucket for one in commits])
        offsets = self._group(state, group)
        codes = []
        for one in commits:
            current = offsets.get(one.bucket)
            if one.claim != (current.claim if current is not None else 0):
                codes.append(Code.CLAIM_LOST)
            elif not 0 <= one.offset <= state.buckets[one.bucket].durable:
                codes.append(Code.OFFSET_OUT_OF_RANGE)
            else:
                codes.append(Code.OK)
        return codes

    async def reset(self, topic: Topic, group: str, offsets: Mapping[int, int], now: int, context: CallContext) -> None:
        """Set the offsets of a group."""
        state = await self._states.load(topic)
        for bucket, offset in offsets.items():
            check_bucket(topic, bucket)
            check_offset(topic, bucket, offset, 0, state.buckets[bucket].durable)
        self._prepared.check_free(topic.number, group, offsets)
        self._group(state, group)
        number, writes = self._next_number(), new_batch()
        with self._altering():
            for bucket, offset in offsets.items():
                self._put(state, group, bucket, CommittedOffset(offset, number, now), writes)
            waiting = self._write(writes)
        await _until(waiting)

    async def groups(self, topic: Topic) -> dict[str, dict[int, CommittedOffset]]:
        """Every group."""
        held, found = (await self._states.load(topic)).groups, dict[str, dict[int, CommittedOffset]]()
        for number, name in enumerate(list(held), start=1):
            if name in held:
                found[name] = dict(held[name])
            if number % _GROUPS_PER_STEP == 0:
                await asyncio.sleep(0)
        return found

    async def remove_group(self, topic: Topic, group: str, context: CallContext) -> bool:
        """Forget a group."""
        state, writes = await self._states.load(topic), new_batch()
        self._prepared.check_free(topic.number, group, range(len(state.buckets)))
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
        state, removed, gone = await self._states.load(topic), 0, list[LogSegment]()
        trimmed: asyncio.Future[None] | None = None
        for bucket in state.buckets:
            if bucket.segments:
                count, written = await self._trim(state, bucket, retention, now, gone)
                removed, trimmed = removed + count, written or trimmed
            elif not bucket.moving:
                writes = new_batch()
                with self._altering():
                    removed += retaining.remove_oldest(state, self._database, bucket, retention, now, writes)
                    if len(writes):
                        self._committer.write(writes)
            await asyncio.sleep(0)
            self._state(topic)
            self.segments.look(state, bucket, now)
        writes = new_batch()
        with self._altering():
            retaining.forget_sessions(state, self._database, now, writes)
            waiting = self._write(writes)
        await _until(waiting)
        await _until(trimmed)
        self.segments.removed(gone)
        return removed

    async def _trim(
        self, state: LogState, bucket: LogBucket, retention: LogRetention, now: int, gone: list[LogSegment]
    ) -> tuple[int, asyncio.Future[None] | None]:
        """Remove messages in segments; how many, and what to wait for before the files of those `gone` are removed."""
        bucket.settle(now)
        if bucket.replacing:
            return 0, None
        bucket.replacing = True
        try:
            read = retaining.read_by_all(state, bucket.number) if retention.trim_read else 0
            trim = await trimming.limit_of(self.segments.files, bucket, retention, now, read)
            if trim is None:
                return 0, None
            minutes = await trimming.minutes_before(state, self._database, bucket, trim.start)
            self._state(state.topic)
            removed, writes = trim.start - bucket.start, new_batch()
            with self._altering():
                gone += trimming.put(state, self._database, bucket, trim, minutes, writes)
                return removed, self._committer.write(writes)
        finally:
            bucket.replacing = False


async def _until(durable: asyncio.Future[None] | None) -> None:
    if durable is not None:
        await asyncio.shield(durable)


def _show_when(state: LogState, durable: asyncio.Future[None] | None) -> None:
    """Let readers see what was appended, once it is durable."""
    ends = {bucket.number: bucket.next for bucket in state.buckets if bucket.next > bucket.durable}
    if durable is not None and ends:
        durable.add_done_callback(lambda done: _show(state, ends, done))


def _show(state: LogState, ends: Mapping[int, int], done: asyncio.Future[None]) -> None:
    """Let readers see what is durable."""
    if not done.cancelled() and done.exception() is None:
        for bucket, end in ends.items():
            state.buckets[bucket].durable = max(state.buckets[bucket].durable, end)
