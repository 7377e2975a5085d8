"""Prepared transactions: their records are in memory and in the database, and are written with what they change."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from dejaq.domain.topic import Topic
from dejaq.errors import Refused
from dejaq.storage.log.base import Appended
from dejaq.storage.log.prepared import PreparedState, PreparedTransaction
from dejaq.storage.log.prepared_records import PreparedRecords
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import Batch, RocksDatabase
from dejaq.storage.rocksdb.log import records
from dejaq.storage.rocksdb.log.appending import append
from dejaq.storage.rocksdb.log.state import LogBucket, LogState
from dejaq.storage.transactions import LogAppendStep, LogStep


def load(database: RocksDatabase) -> PreparedRecords:
    """Every prepared transaction of a store."""
    found = PreparedRecords()
    prefix = keys.LOG_PREPARED
    for key, value in database.scan(prefix, keys.after(prefix)):
        record = PreparedTransaction.unpack(value)
        found.records[keys.topic_of(key), record.name] = record
    return found


def put_appends(
    state_of: dict[int, LogState], database: RocksDatabase, steps: Sequence[LogStep], now: int, writes: Batch
) -> list[Appended]:
    """Append the batches of steps that are allowed, which wait for the outcome; their places."""
    places: list[Appended] = []
    for step in steps:
        if isinstance(step, LogAppendStep):
            batch = replace(step.batch, prepared=True)
            (answer,) = append(state_of[step.topic.number], database, [batch], now, writes)
            if isinstance(answer, Refused):
                raise RuntimeError(f"an append that was allowed was refused: {answer}")
            places.append(answer)
    return places


def put_record(held: PreparedRecords, topic: Topic, record: PreparedTransaction, now: int, writes: Batch) -> None:
    """Write the record of a transaction, and forget old ones."""
    for old in held.forgettable(topic.number, now):
        del held.records[topic.number, old]
        writes.delete(records.prepared_key(topic.number, old))
    held.records[topic.number, record.name] = record
    writes.put(records.prepared_key(topic.number, record.name), record.pack())


def resolve_batches(
    states: dict[int, LogState], database: RocksDatabase, record: PreparedTransaction, writes: Batch
) -> list[tuple[LogBucket, int]]:
    """Write the batches of a transaction as committed or aborted; the buckets and offsets that readers wait for."""
    waiting: list[tuple[LogBucket, int]] = []
    for one in record.batches:
        state = states.get(one.topic)
        found = state.entry_at(database, one.bucket, one.base) if state is not None else None
        if state is None or found is None:
            continue
        bucket = state.buckets[one.bucket]
        window = bucket.window(one.base)
        if window is not None:
            window.leaving = True
        aborted = record.state is PreparedState.ABORTED
        value = records.resolved_value(*found, aborted=aborted)
        writes.put(records.batch_key(one.topic, one.bucket, one.base), value)
        waiting.append((bucket, one.base))
    return waiting


def let_pass(waiting: Sequence[tuple[LogBucket, int]], durable: asyncio.Future[None], *, aborted: bool) -> None:
    """Let readers pass the batches when the outcome is durable."""

    def done(ended: asyncio.Future[None]) -> None:
        if not ended.cancelled() and ended.exception() is None:
            for bucket, base in waiting:
                bucket.pass_window(base, aborted=aborted)

    durable.add_done_callback(done)
