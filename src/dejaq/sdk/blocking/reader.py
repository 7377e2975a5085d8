"""Generated from `dejaq.sdk.log.reader` by `scripts/generate_sync.py`; edit that module, not this one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from types import TracebackType
from typing import Self

from dejaq.sdk.blocking.portal import Blocking, each
from dejaq.sdk.log.messages import LogBatch, LogMessage
from dejaq.sdk.log.reader import LogReader as AsyncLogReader
from dejaq.sdk.log.stream import BATCH_MESSAGES


class LogReader(Blocking[AsyncLogReader]):
    """Reads a log from a place on and waits for more. Open it with `with`, and iterate over it."""

    __slots__ = ()

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
