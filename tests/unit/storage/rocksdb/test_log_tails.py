"""The newest batches of logs in memory."""

from __future__ import annotations

import tracemalloc

from dejaq.storage.log.base import StoredBatch
from dejaq.storage.rocksdb.log.tail import BucketTail, LogTails

BATCH_BYTES, TAIL_BYTES = 64 * 1024, 1024 * 1024


def test_large_batches_are_freed_when_they_leave_the_tails() -> None:
    tails, buckets = LogTails(TAIL_BYTES), [BucketTail() for _ in range(4)]
    tracemalloc.start()
    try:
        for n in range(400):
            tails.add(buckets[n % 4], StoredBatch(n, 4, 0, bytes(BATCH_BYTES)))
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert tails.used <= TAIL_BYTES
    assert used < 2 * TAIL_BYTES


def test_a_bucket_keeps_its_newest_batches_without_a_gap() -> None:
    tails, bucket = LogTails(TAIL_BYTES), BucketTail()
    for n in range(1_000):
        tails.add(bucket, StoredBatch(10 * n, 10, 0, bytes([n % 251]) * (BATCH_BYTES // 64)))
    first = next(offset for offset in range(10_000) if bucket.first_of(offset) is not None)
    assert 0 < first < 9_990
    for offset in range(first, 10_000):
        place = bucket.first_of(offset)
        assert place is not None
        batch = bucket.at(place)
        assert batch is not None
        assert batch.base == offset // 10 * 10
        assert batch.records[0] == offset // 10 % 251
    assert bucket.first_of(10_000) is None
