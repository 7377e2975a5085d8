"""Generated from `dejaq.sdk.log.group` by `scripts/generate_sync.py`; edit that module, not this one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from types import TracebackType
from typing import Self

from dejaq.sdk.blocking.portal import Blocking, each
from dejaq.sdk.log.group import LogGroup as AsyncLogGroup
from dejaq.sdk.log.group import LogWorker as AsyncLogWorker
from dejaq.sdk.log.group import LogWorkerStats
from dejaq.sdk.log.messages import LogBatch, LogMessage
from dejaq.sdk.log.stream import BATCH_MESSAGES
from dejaq.sdk.log.transacting import GroupCommits


class LogGroup(Blocking[AsyncLogGroup]):
    """Reads the buckets that the broker assigns. Open it with `with`, iterate over it, and `commit`.

    What was not committed is received again after a reconnect, or by the next member that gets the bucket. The broker
    sends about one window of messages; when a share of it was committed, it sends more.
    """

    __slots__ = ()

    @property
    def buckets(self) -> list[int]:
        """The buckets that this member has now."""
        return self._inner.buckets

    def claims(self) -> dict[int, int]:
        """The claim of each bucket that this member has now."""
        return self._inner.claims()

    def commit(self, offsets: Mapping[int, int] | None = None) -> None:
        """Commit everything that was handed out, or these offsets; each is the next one to read.

        Raises CLAIM_LOST when another member has a bucket by now; the other buckets are committed.
        """
        self._portal.follow(self._inner.commit(offsets))

    @property
    def commits(self) -> GroupCommits:
        """What a transaction commits."""
        return self._inner.commits

    def committed(self) -> dict[int, int]:
        """What the group has committed of every bucket, also of buckets of other members."""
        return self._portal.run(self._inner.committed())

    def open(self) -> None:
        """Connect and begin to read; raises NoBroker after the deadline, or the broker's refusal."""
        self._portal.run(self._inner.open())

    def close(self) -> None:
        """Stop reading and disconnect."""
        if self._portal.is_open:
            self._portal.follow(self._inner.close())

    def __enter__(self) -> Self:
        self._portal.run(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._portal.is_open:
            self._portal.follow(self._inner.__aexit__(kind, error, trace))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> LogMessage:
        return self._portal.follow(self._inner.__anext__())

    def batches(self, max_messages: int = BATCH_MESSAGES) -> Iterator[LogBatch]:
        """The messages as batches of at most so many, each of one bucket, as columns."""
        return each(self._inner.batches(max_messages), self._portal)

    def getone(self) -> LogMessage:
        """The next message; waits for it. Raises OUT_OF_STATE when the reader is closed."""
        return self._portal.follow(self._inner.getone())

    def getmany(self, max_messages: int = BATCH_MESSAGES, *, timeout: float | None = None) -> list[LogBatch]:
        """What was received, as batches with at most so many messages in all; waits for the first one.

        Empty when nothing came within `timeout` seconds, or when the reader is closed. A cancelled call loses nothing.
        """
        return self._portal.follow(self._inner.getmany(max_messages, timeout=timeout))

    def position(self, bucket: int) -> int:
        """The offset behind the last message of a bucket that was handed out; OUT_OF_STATE for another bucket."""
        return self._inner.position(bucket)

    def positions(self) -> dict[int, int]:
        """The same for every bucket of the reader."""
        return self._inner.positions()

    def end_offsets(self) -> dict[int, int]:
        """The offset at which each bucket of the reader ends at present, for this reader."""
        return self._portal.run(self._inner.end_offsets())

    def beginning_offsets(self) -> dict[int, int]:
        """The offset of the oldest message of each bucket of the reader."""
        return self._portal.run(self._inner.beginning_offsets())

    def offsets_for_times(self, times: Mapping[int, datetime | int]) -> dict[int, int]:
        """The first offset of a time in each of these buckets."""
        return self._portal.run(self._inner.offsets_for_times(times))

    def seek_to_beginning(self, *buckets: int) -> None:
        """Continue with the oldest messages of these buckets, or of all."""
        self._portal.run(self._inner.seek_to_beginning(*buckets))

    def seek_to_end(self, *buckets: int) -> None:
        """Continue with what is appended from now on to these buckets, or to all."""
        self._portal.run(self._inner.seek_to_end(*buckets))

    def lag(self) -> int:
        """How many messages of the reader's buckets it has not handed out."""
        return self._portal.run(self._inner.lag())

    def seek(self, bucket: int, offset: int) -> None:
        """Continue at another offset of a bucket; when that fails, reading continues where it was."""
        self._portal.follow(self._inner.seek(bucket, offset))

    def pause(self, buckets: Iterable[int]) -> None:
        """Hand out nothing of these buckets until they are resumed."""
        self._portal.run(self._inner.pause(buckets))

    def resume(self, buckets: Iterable[int]) -> None:
        """Hand out messages of these buckets again."""
        self._portal.run(self._inner.resume(buckets))


class LogWorker(Blocking[AsyncLogWorker]):
    """Runs `function` for the messages of a log, from `run` until `stop`, as a member of a group.

    The messages of a bucket are handled in order, one after the other. When the function raises an error, it is called
    again with the same message, after the time that the back-off policy says: nothing of that bucket is skipped.

    An async function runs in the event loop, any other function in a thread. Several workers of one group divide the
    buckets.
    """

    __slots__ = ()

    @property
    def stats(self) -> LogWorkerStats:
        """The stats of this logworker."""
        return self._inner.stats

    def stop(self) -> None:
        """Take no more messages; `run` returns when the running call has ended and was committed; from any thread."""
        self._inner.stop()

    def run(self) -> None:
        """Work until `stop`; waits through any outage, and raises an error when the broker refuses the member."""
        self._portal.follow(self._inner.run())
