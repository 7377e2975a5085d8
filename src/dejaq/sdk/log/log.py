"""A log topic, as a client uses it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self
from weakref import WeakSet

from dejaq import limits
from dejaq.domain.backoff import Backoff
from dejaq.domain.headers import encode_headers
from dejaq.domain.message import check_headers
from dejaq.errors import Code, Missing, error_of
from dejaq.sdk.log.appender import Appender, WaitingBatch
from dejaq.sdk.log.calls import LogBucketInfo, LogCalls, LogGroupInfo, LogPreparedInfo, Start
from dejaq.sdk.log.group import LOG_RETRY, LogGroup, LogWorker, OnBuckets
from dejaq.sdk.log.messages import AppendedBatch, LogBatch, LogMessage, LogOffset, bucket_of_key, check_log_body
from dejaq.sdk.log.reader import LogReader
from dejaq.sdk.log.stream import SHARE, WINDOW_BYTES
from dejaq.sdk.log.transacting import LogTarget
from dejaq.sdk.session.seeds import Seeds
from dejaq.sdk.session.settings import ClientSettings

Headers = Mapping[str, str]


class Log:
    """Appends to a log and reads it. It connects when it is used, and is closed with its client."""

    def __init__(self, seeds: Seeds, settings: ClientSettings, topic: str, *, timeout: float | None) -> None:
        if timeout is not None and not timeout > 0:
            raise error_of(Code.INVALID_ARGUMENT, "timeout is seconds above 0")
        self.topic = topic
        self._seeds, self._settings = seeds, settings
        self._calls = LogCalls(seeds, settings, topic)
        timeout_ms, refused = round((timeout or 0) * 1_000), self._calls.refused
        self._appender = Appender(seeds, settings, topic, timeout_ms=timeout_ms, on_refused=refused)
        self._streams: WeakSet[LogReader | LogGroup] = WeakSet()

    async def open(self) -> None:
        """Ask the broker for the buckets; raises when the topic is not a log. The first use would do that too."""
        await self._calls.buckets()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Send what was appended, and close the readers that are still open."""
        await self._appender.close()
        for stream in list(self._streams):
            await stream.close()

    # Appending

    async def append(
        self, body: bytes, *, key: bytes = b"", headers: Headers | None = None, bucket: int | None = None
    ) -> LogOffset:
        """Append one message; returns its place when it is durable. Messages with one key are in one bucket, in order.

        Messages that are appended at the same time travel together; those without a key share a bucket then.
        """
        encoded = _encoded(headers)
        check_log_body(body)
        buckets = self._calls.known_buckets or await self._calls.buckets()
        if bucket is None and not key:
            chosen, offset = self._appender.add_anywhere(buckets, body, encoded)
        else:
            chosen = await self._choose_bucket(key, bucket)
            offset = self._appender.add(chosen, body, key, encoded)
        return LogOffset(chosen, await offset)

    async def append_batch(
        self,
        bodies: Sequence[bytes],
        *,
        keys: Sequence[bytes] | None = None,
        headers: Sequence[Headers] | None = None,
        bucket: int | None = None,
    ) -> list[AppendedBatch]:
        """Append many messages; returns the place of each batch when all are durable.

        Without keys they are one batch of one bucket, or several when they are more than one batch can have. With keys
        each message is in the bucket of its key. A refused batch raises, and the other batches stay appended.
        """
        for column, what in ((keys, "keys"), (headers, "headers")):
            if column is not None and len(column) != len(bodies):
                raise error_of(Code.INVALID_ARGUMENT, f"{len(bodies)} bodies have {len(column)} {what}")
        for body in bodies:
            check_log_body(body)
        encoded = [_encoded(one) for one in headers] if headers is not None else None
        if keys is None:
            rows: dict[int, Sequence[int]] = {await self._choose_bucket(b"", bucket): range(len(bodies))}
        else:
            by_bucket: dict[int, list[int]] = {}
            for row, key in enumerate(keys):
                by_bucket.setdefault(await self._choose_bucket(key, bucket), []).append(row)
            rows = dict(by_bucket)
        waiting = [
            self._appender.add_batch(
                chosen,
                [bodies[row] for row in part],
                [keys[row] for row in part] if keys is not None else (),
                [encoded[row] for row in part] if encoded is not None else (),
            )
            for chosen, all_rows in rows.items()
            for part in _parts(bodies, all_rows)
        ]
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return [answer for answer in answers if isinstance(answer, AppendedBatch)]

    async def append_named(
        self,
        bodies: Sequence[bytes],
        *,
        bucket: int,
        name: str,
        keys: Sequence[bytes] = (),
        headers: Sequence[Headers] = (),
    ) -> AppendedBatch:
        """Append one batch under a name of your own, such as that of the place from which the messages come.

        A repeat under the same name appends nothing, also from another client and after a restart. A name is twenty
        hexadecimal digits, a slash and a number below 2**32. The broker remembers the last 1,024 numbers of each first
        part, until a day after the last one; it refuses another batch under a name, and older numbers, with
        BATCH_NAME_TAKEN.
        """
        for column, what in ((keys, "keys"), (headers, "headers")):
            if len(column) not in (0, len(bodies)):
                raise error_of(Code.INVALID_ARGUMENT, f"{len(bodies)} bodies have {len(column)} {what}")
        for body in bodies:
            check_log_body(body)
        chosen = await self._choose_bucket(b"", bucket)
        batch = WaitingBatch(chosen, list(bodies), list(keys), [_encoded(one) for one in headers], closed=True)
        return await self._appender.append_named(batch, name)

    async def _choose_bucket(self, key: bytes, bucket: int | None) -> int:
        """The bucket of a message with a key; without one the next bucket in turn."""
        buckets = await self._calls.buckets()
        if bucket is not None:
            if not 0 <= bucket < buckets:
                raise error_of(Code.INVALID_ARGUMENT, f"topic {self.topic!r} has {buckets} buckets, not {bucket}")
            return bucket
        if key:
            return bucket_of_key(key, buckets)
        return self._appender.next_bucket(buckets)

    @property
    def target(self) -> LogTarget:
        """What a transaction appends to."""
        return LogTarget(self.topic, self._choose_bucket)

    async def rollback(self, batch: AppendedBatch | str) -> None:
        """Take out a batch, within the rollback window of the topic; raises TOO_LATE after it."""
        await self._calls.rollback(batch if isinstance(batch, str) else batch.name)

    async def commit_prepared(self, name: str) -> None:
        """Commit a transaction that was prepared under a name of this log; a repeat does nothing.

        Raises TOO_LATE when it was aborted, and NOT_FOUND for an unknown name.
        """
        await self._calls.resolve_prepared(name, commit=True)

    async def abort_prepared(self, name: str) -> None:
        """Abort a transaction that was prepared under a name of this log; raises TOO_LATE when it was committed."""
        await self._calls.resolve_prepared(name, commit=False)

    async def in_doubt(self) -> list[LogPreparedInfo]:
        """The transactions that were prepared under names of this log, and are not resolved."""
        return await self._calls.in_doubt()

    # Reading

    def reader(
        self,
        *,
        start: Start = "beginning",
        buckets: Sequence[int] | None = None,
        uncommitted: bool = False,
        headers: Headers | None = None,
        window_bytes: int = WINDOW_BYTES,
        share: float = SHARE,
    ) -> LogReader:
        """A reader that begins at `start` and then waits for more: "beginning", "latest", an offset, a time, or an
        offset for each bucket.

        The broker sends at most `window_bytes` ahead, and more when a `share` of them was taken. With `uncommitted` it
        also gets batches that can still be rolled back, or were. With `headers` it gets only the messages that have all
        of these.
        """
        reader = LogReader(
            self._seeds,
            self._settings,
            self._calls,
            start=start,
            buckets=buckets,
            uncommitted=uncommitted,
            headers=headers,
            window_bytes=window_bytes,
            share=share,
        )
        self._streams.add(reader)
        return reader

    def group(
        self,
        group: str,
        *,
        name: str = "",
        start: Start = "beginning",
        uncommitted: bool = False,
        headers: Headers | None = None,
        on_assigned: OnBuckets | None = None,
        on_revoked: OnBuckets | None = None,
        window_bytes: int = WINDOW_BYTES,
        share: float = SHARE,
    ) -> LogGroup:
        """A member of a group. The buckets are divided among its members; where the group has committed nothing, it
        begins at `start`. With `headers` it gets only the messages that have all of these.

        `on_assigned` and `on_revoked` are called with the buckets that this member gets and loses; before it loses them
        it has a few seconds to commit.
        """
        if not 1 <= len(group) <= limits.GROUP_CHARS_MAX or not group.isprintable():
            raise error_of(
                Code.INVALID_ARGUMENT, f"a group has a name of 1 to {limits.GROUP_CHARS_MAX} printable characters"
            )
        member = LogGroup(
            self._seeds,
            self._settings,
            self._calls,
            group,
            name=name or f"member-{secrets.token_hex(6)}",
            start=start,
            uncommitted=uncommitted,
            headers=headers,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
            window_bytes=window_bytes,
            share=share,
        )
        self._streams.add(member)
        return member

    def worker(
        self,
        group: str,
        *,
        batch: int = 0,
        name: str = "",
        start: Start = "beginning",
        retry: Backoff | str = LOG_RETRY,
    ) -> Callable[[Callable[[Any], object]], LogWorker]:
        """Make a function, async or not, into a worker that runs it for each message, as a member of a group.

        With `batch` the function gets a `LogBatch` of at most so many messages. When it returns, they are committed;
        when it raises an error, it is called again with the same messages as `retry` says. The messages of a bucket are
        handled in order.
        """
        policy = Backoff.parse(retry) if isinstance(retry, str) else retry

        def make(function: Callable[[Any], object]) -> LogWorker:
            def member(*, on_revoked: OnBuckets) -> LogGroup:
                return self.group(group, name=name, start=start, on_revoked=on_revoked)

            return LogWorker(function, member=member, batch=batch, retry=policy, random=self._seeds.random)

        return make

    async def read(
        self,
        *,
        start: Start = "beginning",
        end: Start = "latest",
        buckets: Sequence[int] | None = None,
        uncommitted: bool = False,
        headers: Headers | None = None,
    ) -> AsyncIterator[LogBatch]:
        """The batches from `start` to before `end`, bucket by bucket, without waiting for more.

        A bucket that ends before `end` is read to its end. What retention removes meanwhile is passed. With `headers`
        only the messages that have all of these.
        """
        begins = await self._calls.resolve(start, uncommitted=uncommitted, buckets=buckets)
        ends = await self._calls.resolve(end, uncommitted=uncommitted, buckets=buckets, is_end=True)
        for bucket in sorted(begins.keys() & ends.keys()):
            at, stop = begins[bucket], ends[bucket]
            while at < stop:
                try:
                    answer = await self._calls.fetch(bucket, at, end=stop, uncommitted=uncommitted, headers=headers)
                except Missing as error:
                    oldest = (await self._calls.offsets())[bucket].start
                    if error.code is not Code.OFFSET_OUT_OF_RANGE or oldest <= at:
                        raise
                    at = oldest
                    continue
                for part in answer.slices:
                    batch = LogBatch.of(part).part(at, stop)
                    if len(batch):
                        yield batch
                if answer.next <= at:
                    break
                at = answer.next

    async def tail(self, count: int, *, uncommitted: bool = False, headers: Headers | None = None) -> list[LogMessage]:
        """The last messages of the log, at most so many, in the order of their times.

        With `headers` the last ones that have all of these.
        """
        if count < 1:
            raise error_of(Code.INVALID_ARGUMENT, "tail gives at least one message")
        offsets = await self._calls.offsets()
        found: list[LogMessage] = []
        for bucket, held in enumerate(offsets):
            end = held.next if uncommitted else held.stable
            # Messages that were rolled back or lack the headers have offsets too, so more may be needed.
            start, some = max(end - count, held.start), list[LogMessage]()
            while end > held.start:
                part = self.read(start={bucket: start}, end={bucket: end}, uncommitted=uncommitted, headers=headers)
                some = [message async for batch in part for message in batch]
                if len(some) >= count or start == held.start:
                    break
                start = max(start - max(end - start, count), held.start)
            found += some[-count:]
        return sorted(found, key=lambda message: (message.ts_ms, message.bucket, message.offset))[-count:]

    # What there is

    async def offsets(self) -> list[LogBucketInfo]:
        """The offsets of every bucket."""
        return await self._calls.offsets()

    async def offsets_for_time(self, at: datetime | int) -> list[int]:
        """The first offset of a time in every bucket."""
        return await self._calls.offsets_for_time(at)

    async def groups(self) -> list[LogGroupInfo]:
        """The groups of the log, with what they have committed and their lag."""
        return await self._calls.groups()

    async def reset_group(
        self, group: str, start: Start, *, buckets: Sequence[int] | None = None, dry_run: bool = False
    ) -> dict[int, int]:
        """Set the offsets of a group, in all buckets or in some, and return them; its members read on from there.

        A dry run changes nothing.
        """
        offsets = await self._calls.resolve(start, buckets=buckets)
        if not dry_run:
            await self._calls.reset(group, offsets)
        return offsets

    async def remove_group(self, group: str) -> bool:
        """Forget a group that has no members; whether there was one."""
        return await self._calls.remove_group(group)


def _encoded(headers: Headers | None) -> bytes:
    if not headers:
        return b""
    code = check_headers(headers)
    if code is not Code.OK:
        raise error_of(code)
    return encode_headers(headers)


def _parts(bodies: Sequence[bytes], rows: Sequence[int]) -> list[Sequence[int]]:
    """The rows in parts that each fit into one batch."""
    parts: list[Sequence[int]] = []
    first = size = 0
    for place, row in enumerate(rows):
        size += len(bodies[row]) + limits.HEADERS_BYTES_MAX // 8
        if place - first >= limits.BATCH_COUNT_MAX or (size > limits.BATCH_BYTES_MAX // 2 and place > first):
            parts.append(rows[first:place])
            first, size = place, len(bodies[row])
    if first < len(rows):
        parts.append(rows[first:])
    return parts
