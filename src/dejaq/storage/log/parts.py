"""Parts of a batch, when some of its messages are left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dejaq.protocol.v1 import log_pb2
from dejaq.storage.log.base import StoredBatch


def parts_of(batch: StoredBatch, records: log_pb2.LogRecords, kept: Sequence[bool]) -> Iterator[StoredBatch]:
    """The messages that are kept, as batches of those that follow each other; the batch itself when all are kept."""
    if all(kept):
        yield batch
        return
    start = 0
    while start < len(kept):
        if not kept[start]:
            start += 1
            continue
        end = next((place for place in range(start, len(kept)) if not kept[place]), len(kept))
        part = log_pb2.LogRecords(
            bodies=records.bodies[start:end], keys=records.keys[start:end], headers=records.headers[start:end]
        )
        yield StoredBatch(batch.base + start, end - start, batch.ts, part.SerializeToString(), batch.aborted)
        start = end
