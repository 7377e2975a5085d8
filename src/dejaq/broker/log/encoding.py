"""Batches as they travel: each is encoded once, for all readers.

A message field that comes twice in a frame is one message to every reader of protobuf, and its repeated fields are
joined. So a push is the encoded batches one behind the other, each as a frame of its own.
"""

from __future__ import annotations

from collections import OrderedDict

from dejaq import limits
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1 import log_pb2
from dejaq.storage.log.base import StoredBatch


def slice_of(bucket: int, batch: StoredBatch) -> log_pb2.LogSlice:
    """A batch in the form of the protocol."""
    return log_pb2.LogSlice(
        bucket=bucket,
        base=batch.base,
        count=batch.count,
        ts=batch.ts,
        aborted=batch.aborted,
        records=batch.records,
    )


def encoded_frame(bucket: int, batch: StoredBatch) -> bytes:
    """A frame that pushes one batch."""
    push = log_pb2.LogPush(slices=[slice_of(bucket, batch)])
    frame: bytes = carrier.BrokerFrame(log=log_pb2.LogEvent(push=push)).SerializeToString()
    return frame


class EncodedBatches:
    """The encoded form of the batches that readers got last."""

    def __init__(self, bytes_max: int = limits.LOG_TAIL_BYTES) -> None:
        self._bytes_max = bytes_max
        self._encoded: OrderedDict[tuple[int, int, int, bool], bytes] = OrderedDict()
        self._used = 0

    def frame(self, topic: int, bucket: int, batch: StoredBatch) -> bytes:
        """A frame that pushes one batch, whole."""
        key = (topic, bucket, batch.base, batch.aborted)
        found = self._encoded.get(key)
        if found is None:
            found = encoded_frame(bucket, batch)
            self._encoded[key] = found
            self._used += len(found)
            while self._used > self._bytes_max:
                self._used -= len(self._encoded.popitem(last=False)[1])
        return found
