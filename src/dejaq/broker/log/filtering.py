"""Readers that want only the messages with certain headers: the others stay at the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from dejaq.domain.headers import decode_headers
from dejaq.domain.message import check_headers
from dejaq.errors import Code, error_of
from dejaq.protocol.v1 import log_pb2
from dejaq.storage.log.base import LogSlice, StoredBatch
from dejaq.storage.log.parts import parts_of

# After so many messages the event loop does other work.
_STEP_MESSAGES = 500


class HeaderFilter:
    """Keeps the messages that have all these headers with these values."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._wanted = dict(headers)
        if (code := check_headers(self._wanted)) is not Code.OK:
            raise error_of(code, "no message can have the headers that the reader asks for")
        # Most messages that do not match are recognised by these bytes alone.
        self._texts = [text.encode() for item in headers.items() for text in item]

    async def select(self, part: LogSlice, offset: int) -> LogSlice:
        """What matches of a part that was read at `offset`, as batches of messages that follow each other.

        When the last messages do not match, an empty batch at the end says how far the reader is.
        """
        kept: list[StoredBatch] = []
        seen = 0
        for batch in part.batches:
            records = log_pb2.LogRecords.FromString(batch.records)
            fitting: list[bool] = []
            for headers in records.headers:
                fitting.append(self._fits(headers))
                seen += 1
                if seen % _STEP_MESSAGES == 0:
                    await asyncio.sleep(0)
            kept += parts_of(batch, records, fitting) if any(fitting) else ()
        if part.next > max(offset, kept[-1].end if kept else 0):
            kept.append(StoredBatch(part.next, 0, part.batches[-1].ts if part.batches else 0, b""))
        return LogSlice(tuple(kept), part.next)

    def _fits(self, headers: bytes) -> bool:
        if not all(text in headers for text in self._texts):
            return False
        there = decode_headers(headers)
        return all(there.get(name) == value for name, value in self._wanted.items())


def filter_of(headers: Mapping[str, str]) -> HeaderFilter | None:
    """The filter that a request asks for, or None without headers."""
    return HeaderFilter(headers) if headers else None
