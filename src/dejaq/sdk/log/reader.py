"""A reader without a group: it keeps its own positions, and commits nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dejaq.protocol.v1 import log_pb2
from dejaq.sdk.log.calls import LogCalls, Start
from dejaq.sdk.log.stream import SHARE, WINDOW_BYTES, LogStream, answer_moving, positions_to_proto
from dejaq.sdk.session.seeds import Seeds
from dejaq.sdk.session.settings import ClientSettings


class LogReader(LogStream):
    """Reads a log from a place on and waits for more. Open it with `async with`, and iterate over it."""

    def __init__(
        self,
        seeds: Seeds,
        settings: ClientSettings,
        calls: LogCalls,
        *,
        start: Start,
        buckets: Sequence[int] | None,
        uncommitted: bool,
        headers: Mapping[str, str] | None = None,
        window_bytes: int = WINDOW_BYTES,
        share: float = SHARE,
    ) -> None:
        super().__init__(
            seeds, settings, calls, uncommitted=uncommitted, headers=headers, window_bytes=window_bytes, share=share
        )
        self._start, self._buckets = start, buckets

    async def _prepare(self) -> None:
        found = await self._calls.resolve(self._start, uncommitted=self._uncommitted, buckets=self._buckets)
        for bucket, offset in found.items():
            self._buffer.begin(bucket, offset)

    def _describe(self, opening: log_pb2.LogOpen) -> None:
        # What was received and not handed out is received again. The new session has a window of its own.
        wanted = {one.bucket: one for one in self._seeking.values() if one.moved is not None}
        for bucket, moving in wanted.items():
            self._begin(bucket, moving.offset)
        for moving in self._seeking.values():
            answer_moving(moving, None)
        self._seeking.clear()
        self._see_moving()
        for bucket, offset in dict(self._buffer.handed).items():
            self._buffer.begin(bucket, offset)
        self._buffer.held |= self._paused
        opening.positions.extend(positions_to_proto(self._buffer.handed))
