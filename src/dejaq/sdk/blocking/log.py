"""Generated from `dejaq.sdk.log.log` by `scripts/generate_sync.py`; edit that module, not this one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from dejaq.domain.backoff import Backoff
from dejaq.sdk.blocking.group import LogGroup, LogWorker
from dejaq.sdk.blocking.portal import Blocking, each, then
from dejaq.sdk.blocking.reader import LogReader
from dejaq.sdk.log.calls import LogBucketInfo, LogGroupInfo, LogPreparedInfo, Start
from dejaq.sdk.log.group import LOG_RETRY, OnBuckets
from dejaq.sdk.log.log import Headers
from dejaq.sdk.log.log import Log as AsyncLog
from dejaq.sdk.log.messages import AppendedBatch, LogBatch, LogMessage, LogOffset
from dejaq.sdk.log.stream import SHARE, WINDOW_BYTES
from dejaq.sdk.log.transacting import LogTarget


class Log(Blocking[AsyncLog]):
    """Appends to a log and reads it. It connects when it is used, and is closed with its client."""

    __slots__ = ()

    @property
    def topic(self) -> str:
        """The topic of this log."""
        return self._inner.topic

    def open(self) -> None:
        """Ask the broker for the buckets; raises when the topic is not a log. The first use would do that too."""
        self._portal.run(self._inner.open())

    def __enter__(self) -> Self:
        self._portal.run(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._portal.is_open:
            self._portal.follow(self._inner.__aexit__(kind, error, trace))

    def close(self) -> None:
        """Send what was appended, and close the readers that are still open."""
        if self._portal.is_open:
            self._portal.follow(self._inner.close())

    def append(
        self, body: bytes, *, key: bytes = b"", headers: Headers | None = None, bucket: int | None = None
    ) -> LogOffset:
        """Append one message; returns its place when it is durable. Messages with one key are in one bucket, in order.

        Messages that are appended at the same time travel together; those without a key share a bucket then.
        """
        return self._portal.follow(self._inner.append(body, key=key, headers=headers, bucket=bucket))

    def append_batch(
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
        return self._portal.follow(self._inner.append_batch(bodies, keys=keys, headers=headers, bucket=bucket))

    def append_named(
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
        return self._portal.run(self._inner.append_named(bodies, bucket=bucket, name=name, keys=keys, headers=headers))

    @property
    def target(self) -> LogTarget:
        """What a transaction appends to."""
        return self._inner.target

    def rollback(self, batch: AppendedBatch | str) -> None:
        """Take out a batch, within the rollback window of the topic; raises TOO_LATE after it."""
        self._portal.run(self._inner.rollback(batch))

    def commit_prepared(self, name: str) -> None:
        """Commit a transaction that was prepared under a name of this log; a repeat does nothing.

        Raises TOO_LATE when it was aborted, and NOT_FOUND for an unknown name.
        """
        self._portal.run(self._inner.commit_prepared(name))

    def abort_prepared(self, name: str) -> None:
        """Abort a transaction that was prepared under a name of this log; raises TOO_LATE when it was committed."""
        self._portal.run(self._inner.abort_prepared(name))

    def in_doubt(self) -> list[LogPreparedInfo]:
        """The transactions that were prepared under names of this log, and are not resolved."""
        return self._portal.run(self._inner.in_doubt())

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
        return LogReader(
            self._inner.reader(
                start=start,
                buckets=buckets,
                uncommitted=uncommitted,
                headers=headers,
                window_bytes=window_bytes,
                share=share,
            ),
            self._portal,
        )

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
        return LogGroup(
            self._inner.group(
                group,
                name=name,
                start=start,
                uncommitted=uncommitted,
                headers=headers,
                on_assigned=on_assigned,
                on_revoked=on_revoked,
                window_bytes=window_bytes,
                share=share,
            ),
            self._portal,
        )

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
        return then(
            self._inner.worker(group, batch=batch, name=name, start=start, retry=retry),
            lambda made: LogWorker(made, self._portal),
        )

    def read(
        self,
        *,
        start: Start = "beginning",
        end: Start = "latest",
        buckets: Sequence[int] | None = None,
        uncommitted: bool = False,
        headers: Headers | None = None,
    ) -> Iterator[LogBatch]:
        """The batches from `start` to before `end`, bucket by bucket, without waiting for more.

        A bucket that ends before `end` is read to its end. What retention removes meanwhile is passed. With `headers`
        only the messages that have all of these.
        """
        return each(
            self._inner.read(start=start, end=end, buckets=buckets, uncommitted=uncommitted, headers=headers),
            self._portal,
        )

    def tail(self, count: int, *, uncommitted: bool = False, headers: Headers | None = None) -> list[LogMessage]:
        """The last messages of the log, at most so many, in the order of their times.

        With `headers` the last ones that have all of these.
        """
        return self._portal.follow(self._inner.tail(count, uncommitted=uncommitted, headers=headers))

    def offsets(self) -> list[LogBucketInfo]:
        """The offsets of every bucket."""
        return self._portal.run(self._inner.offsets())

    def offsets_for_time(self, at: datetime | int) -> list[int]:
        """The first offset of a time in every bucket."""
        return self._portal.run(self._inner.offsets_for_time(at))

    def groups(self) -> list[LogGroupInfo]:
        """The groups of the log, with what they have committed and their lag."""
        return self._portal.run(self._inner.groups())

    def reset_group(
        self, group: str, start: Start, *, buckets: Sequence[int] | None = None, dry_run: bool = False
    ) -> dict[int, int]:
        """Set the offsets of a group, in all buckets or in some, and return them; its members read on from there.

        A dry run changes nothing.
        """
        return self._portal.run(self._inner.reset_group(group, start, buckets=buckets, dry_run=dry_run))

    def remove_group(self, group: str) -> bool:
        """Forget a group that has no members; whether there was one."""
        return self._portal.run(self._inner.remove_group(group))
