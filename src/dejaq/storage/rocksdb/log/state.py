"""Logs in memory: the offsets of their buckets, their newest batches, and their groups.

Each log is read from the database at its first use, in short steps.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from dejaq.domain.topic import Topic
from dejaq.errors import Code, StoreError, error_of
from dejaq.storage.log.base import MINUTE_MS, BucketOffsets, CommittedOffset, MinuteCount, StoredBatch
from dejaq.storage.log.prepared import NEVER_MS
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import Batch, RocksDatabase
from dejaq.storage.rocksdb.log import records
from dejaq.storage.rocksdb.log.records import BatchEntry
from dejaq.storage.rocksdb.log.tail import BucketTail, LogTails
from dejaq.storage.segments.writer import LogSegment

# The batches after a start whose windows are read in one step of the loop.
_WINDOWS_PER_STEP = 500
# The records that are read in one step when a log is loaded.
_LOADED_PER_STEP = 100
# The greatest key between two, and its value.
LastItem = Callable[[bytes, bytes], tuple[bytes, bytes] | None]


@dataclass(slots=True)
class OpenWindow:
    """A batch that can be rolled back until `until`, for `length_ms` from the append on."""

    base: int
    until: int
    length_ms: int
    # A rollback is being written: readers wait for it.
    leaving: bool = False
    # What was `added` to the bucket before it.
    before: int = 0


@dataclass(slots=True)
class LogBucket:
    """One bucket. `next` is ahead of `durable` while appends wait for the disk; readers stop at `durable`."""

    number: int
    next: int = 0
    durable: int = 0
    start: int = 0
    stable: int = 0
    last_ts: int = 0
    size: int = 0
    minute: MinuteCount | None = None
    # Batches within their rollback windows, in the order of their offsets.
    windows: deque[OpenWindow] = field(default_factory=deque)
    # After a start: where the batches begin whose windows were not read yet.
    unread: int | None = None
    # Reads the windows of some batches from `unread` on.
    read_more: Callable[[LogBucket], None] = lambda bucket: None
    tail: BucketTail = field(default_factory=BucketTail)
    # The files with its oldest batches, which follow each other without a gap.
    segments: list[LogSegment] = field(default_factory=list)
    # The bytes of the batches that are not in segments; those that were added since the log was loaded.
    unmoved: int = 0
    added: int = 0
    # Batches are moved when so much is not in segments, after few could be moved.
    move_from: int = 0
    # The time of the first batch, where the first segment is not kept as a whole.
    oldest_ts: int = 0
    # Batches are being moved into a segment, or segments are being replaced: retention waits.
    moving: bool = False
    replacing: bool = False

    @property
    def border(self) -> int:
        """The offset at which the batches begin that are not in segments."""
        return self.segments[-1].end if self.segments else self.start

    def movable(self) -> int:
        """About how many bytes of the batches that are not in segments cannot be rolled back any more."""
        if self.unread is not None:
            return 0
        return self.unmoved - (self.added - self.windows[0].before) if self.windows else self.unmoved

    def settle(self, now: int) -> int:
        """Close the windows that have passed; the last stable offset, which never moves back."""
        if self.windows and self.windows[0].until > now + self.windows[0].length_ms:
            # The clock was set back. A window that began before that lasts its length from now on, at most.
            for window in self.windows:
                window.until = min(window.until, now + window.length_ms)
        while self.windows and self.windows[0].until <= now and not self.windows[0].leaving:
            self.windows.popleft()
        if self.windows:
            end = self.windows[0].base
        else:
            end = self.next if self.unread is None else self.unread
            if self.unread is not None:
                # The next call continues with these: each call reads a few, since the loop waits for it.
                self.read_more(self)
        self.stable = max(self.stable, end)
        return self.stable

    def open_window(self, base: int, until: int, length_ms: int) -> None:
        """Committed readers stop before a new batch. While older windows are not read, its own is read with them."""
        if self.unread is None:
            self.windows.append(OpenWindow(base, until, length_ms, before=self.added))

    async def read_windows(self, before: int) -> None:
        """Read the windows of the batches before an offset, in steps."""
        while self.unread is not None and self.unread < before:
            self.read_more(self)
            await asyncio.sleep(0)

    async def settled(self, now: int) -> int:
        """The last stable offset, after all windows that have passed were closed."""
        self.settle(now)
        while self.unread is not None and self._first_has_passed(now):
            await asyncio.sleep(0)
            self.settle(now)
        return self.settle(now)

    def _first_has_passed(self, now: int) -> bool:
        return not self.windows or (self.windows[0].until <= now and not self.windows[0].leaving)

    def pass_window(self, base: int, *, aborted: bool) -> None:
        """Let readers pass a batch that was taken out, or whose transaction was resolved, durably."""
        window = self.window(base)
        if window is not None:
            self.windows.remove(window)
        place = self.tail.first_of(base)
        batch = self.tail.at(place) if place is not None else None
        if batch is not None and aborted:
            self.tail.replace(StoredBatch(batch.base, batch.count, batch.ts, batch.records, aborted=True))

    def window(self, base: int) -> OpenWindow | None:
        """The window of a batch."""
        return next((one for one in self.windows if one.base == base), None)

    def count(self, ts: int, base: int, count: int, size: int) -> MinuteCount:
        """Count an appended batch in its minute."""
        minute = ts // MINUTE_MS
        now = self.minute
        if now is None or now.minute != minute:
            self.minute = MinuteCount(minute, base, count, size)
        else:
            self.minute = MinuteCount(minute, now.first, now.count + count, now.bytes + size)
        return self.minute

    async def offsets(self, now: int) -> BucketOffsets:
        """What readers may know of it."""
        stable = await self.settled(now)
        return BucketOffsets(self.start, min(stable, self.durable), self.durable, self.size)


class LogState:
    """One log topic."""

    def __init__(self, topic: Topic, tails: LogTails) -> None:
        self.topic = topic
        self.tails = tails
        self.buckets = [LogBucket(number) for number in range(topic.settings.buckets)]
        self.groups: dict[str, dict[int, CommittedOffset]] = {}
        self.forgot_at = 0
        # Where the next step looks for sessions to forget, while it is not through.
        self.forget_from: bytes | None = None

    def load(self, database: RocksDatabase) -> Iterator[None]:
        """Read it from the database, in steps between which others may run. Nothing may use it before the last one."""
        number = self.topic.number
        for step in _in_steps(database, keys.of_topic(keys.LOG_BUCKET, number)):
            with database.seeking() as last_item:
                for key, value in step:
                    bucket = self.buckets[int.from_bytes(key[keys.BUCKET_BYTES], "big")]
                    self._load_bucket(bucket, value, last_item, database)
            yield
        for step in _in_steps(database, keys.of_topic(keys.LOG_SEGMENT, number)):
            for key, value in step:
                bucket = self.buckets[int.from_bytes(key[keys.BUCKET_BYTES], "big")]
                bucket.segments.append(records.unpack_segment(key, value))
            yield
        for step in _in_steps(database, keys.of_topic(keys.LOG_OFFSET, number)):
            for key, value in step:
                place, group = records.group_of(key)
                self.groups.setdefault(group, {})[place] = records.unpack_offset(value)
            yield

    def _load_bucket(self, bucket: LogBucket, value: bytes, last_item: LastItem, database: RocksDatabase) -> None:
        bucket.next, bucket.start, bucket.stable, bucket.last_ts, bucket.size, bucket.unmoved = records.unpack_bucket(
            value
        )
        bucket.durable = bucket.next
        first = records.minute_key(self.topic.number, bucket.number, 0)
        found = last_item(first, records.minute_key(self.topic.number, bucket.number, 2**63))
        bucket.minute = None if found is None else records.unpack_minute(*found)
        if bucket.stable < bucket.next:
            bucket.unread, bucket.read_more = bucket.stable, partial(self._read_windows, database)

    def _read_windows(self, database: RocksDatabase, bucket: LogBucket) -> None:
        """Read the windows of the next batches of which they were not read."""
        if bucket.unread is None:
            return
        first = records.batch_key(self.topic.number, bucket.number, bucket.unread)
        end = records.batch_key(self.topic.number, bucket.number, bucket.next)
        read = [records.unpack_batch(*item) for item in islice(database.scan(first, end), _WINDOWS_PER_STEP)]
        bucket.unread = read[-1].end if len(read) == _WINDOWS_PER_STEP else None
        for entry in read:
            if entry.prepared:
                bucket.windows.append(OpenWindow(entry.base, NEVER_MS, NEVER_MS))
            elif entry.rollback_ms and not entry.aborted:
                bucket.windows.append(OpenWindow(entry.base, entry.ts + entry.rollback_ms, entry.rollback_ms))

    def put_bucket(self, bucket: LogBucket, writes: Batch) -> None:
        """Write the offsets of a bucket."""
        writes.put(
            records.bucket_key(self.topic.number, bucket.number),
            records.pack_bucket(
                next_offset=bucket.next,
                start=bucket.start,
                stable=bucket.stable,
                last_ts=bucket.last_ts,
                size=bucket.size,
                unmoved=bucket.unmoved,
            ),
        )

    def put_minute(self, bucket: LogBucket, minute: MinuteCount, writes: Batch) -> None:
        """Write the counts of a minute, or remove them when nothing is left."""
        key = records.minute_key(self.topic.number, bucket.number, minute.minute)
        if minute.count:
            writes.put(key, records.pack_minute(minute))
        else:
            writes.delete(key)
        if bucket.minute is not None and bucket.minute.minute == minute.minute:
            bucket.minute = minute if minute.count else None

    def entry_at(self, database: RocksDatabase, bucket: int, offset: int) -> tuple[BatchEntry, bytes] | None:
        """The batch that has an offset, and its value; None for one that is in a segment."""
        number = self.topic.number
        found = database.last_item(records.batch_key(number, bucket, 0), records.batch_key(number, bucket, offset))
        if found is None:
            return None
        entry = records.unpack_batch(*found)
        return (entry, found[1]) if entry.end > offset else None

    def add_to_tail(self, bucket: LogBucket, batch: StoredBatch) -> None:
        """Keep a new batch in memory."""
        self.tails.add(bucket.tail, batch)


@dataclass(slots=True)
class _Loading:
    """A log that is being read, and how many calls wait for it; they go on in the order in which they came."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    count: int = 0


class LogStates:
    """The logs that were used. `check` raises when the store does not work; `topic_of` is the topic of a number, if it
    takes messages.
    """

    def __init__(
        self,
        database: RocksDatabase,
        tails: LogTails,
        *,
        check: Callable[[], None],
        topic_of: Callable[[int], Topic | None],
    ) -> None:
        self._database, self._tails = database, tails
        self._check, self._topic_of = check, topic_of
        self._states: dict[int, LogState] = {}
        self._loading: dict[int, _Loading] = {}

    def known(self, number: int) -> LogState | None:
        """The state of a log that was used."""
        return self._states.get(number)

    def find(self, number: int) -> LogState | None:
        """The state of a log by its number; None when it was dropped."""
        state = self._states.get(number)
        if state is None and (topic := self._topic_of(number)) is not None and topic.is_log:
            state = self.of(topic)
        return state

    def of(self, topic: Topic) -> LogState:
        """The state of a log; one that was not used yet is read in one step. Raises TOPIC_NOT_FOUND."""
        self._check()
        current = self._topic_of(topic.number)
        if current is None:
            raise error_of(Code.TOPIC_NOT_FOUND, f"topic {topic.name!r} does not exist or is being deleted")
        state = self._states.get(topic.number)
        if state is None:
            state = self._states[topic.number] = LogState(topic, self._tails)
            for _ in state.load(self._database):
                pass
        state.topic = current  # its settings may have changed
        return state

    async def load(self, topic: Topic) -> LogState:
        """The state of a log; one that was not used yet is read in steps. Raises TOPIC_NOT_FOUND."""
        if topic.number not in self._states or topic.number in self._loading:
            await self._read(topic)
        return self.of(topic)

    async def _read(self, topic: Topic) -> None:
        loading = self._loading.setdefault(topic.number, _Loading())
        loading.count += 1
        try:
            async with loading.turn:
                if topic.number in self._states:
                    return
                state = LogState(topic, self._tails)
                for _ in state.load(self._database):
                    await asyncio.sleep(0)
                    self._check()
                    if self._topic_of(topic.number) is None or topic.number in self._states:
                        return
                self._states[topic.number] = state
        finally:
            loading.count -= 1
            if not loading.count:
                del self._loading[topic.number]

    def report(self, topic: Topic, error: StoreError) -> None:
        """Report that a file could not be read; raises TOPIC_NOT_FOUND where it was dropped with its log meanwhile."""
        self.of(topic)
        self._database.on_fault(error)

    def drop(self, number: int) -> None:
        """Forget a log that was dropped."""
        self._states.pop(number, None)


def _in_steps(database: RocksDatabase, prefix: bytes) -> Iterator[list[tuple[bytes, bytes]]]:
    """The records with a prefix, a few at a time; no iterator of the database lives between two steps."""
    start, end = prefix, keys.after(prefix)
    while step := list(islice(database.scan(start, end), _LOADED_PER_STEP)):
        yield step
        start = step[-1][0] + b"\0"
