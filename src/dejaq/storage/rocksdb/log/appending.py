"""Append: offsets are assigned while the change is put together, in the order in which changes are written."""

from __future__ import annotations

from collections.abc import Sequence

from dejaq.errors import Code, Refused, error_of
from dejaq.storage.log.base import NAMES_PER_SESSION, Append, Appended, LogName, StoredBatch, check_bucket
from dejaq.storage.log.prepared import NEVER_MS
from dejaq.storage.rocksdb.engine.database import Batch, RocksDatabase
from dejaq.storage.rocksdb.log import records
from dejaq.storage.rocksdb.log.records import BatchEntry
from dejaq.storage.rocksdb.log.state import LogState


def append(
    state: LogState, database: RocksDatabase, batches: Sequence[Append], now: int, writes: Batch
) -> list[Appended | Refused]:
    """Put the batches into `writes`; the answers."""
    appended: dict[LogName, tuple[int, int, int, int]] = {}
    highest: dict[bytes, int] = {}
    answers: list[Appended | Refused] = []
    for batch in batches:
        try:
            answers.append(
                _repeated(state, database, batch, appended, highest) or _append(state, batch, now, writes, appended)
            )
        except Refused as refusal:
            answers.append(refusal)
    for session, sequence in highest.items():
        writes.put(records.session_key(state.topic.number, session), records.pack_session(sequence, now))
    return answers


def _repeated(
    state: LogState,
    database: RocksDatabase,
    batch: Append,
    appended: dict[LogName, tuple[int, int, int, int]],
    highest: dict[bytes, int],
) -> Appended | None:
    """The place of a batch that was appended before; None for a new one."""
    check_bucket(state.topic, batch.bucket)
    name = batch.name
    if name is None:
        return None
    known = appended.get(name)
    if known is None:
        value = database.get(records.name_key(state.topic.number, name))
        known = None if value is None else records.unpack_name(value)
    if known is not None:
        bucket, base, count, ts = known
        if (bucket, count) != (batch.bucket, batch.count):
            raise error_of(Code.BATCH_NAME_TAKEN)
        return Appended(base, ts, repeated=True)
    last = highest.get(name.session)
    if last is None:
        value = database.get(records.session_key(state.topic.number, name.session))
        last = 0 if value is None else records.unpack_session(value)[0]
    if name.sequence <= last - NAMES_PER_SESSION:
        raise error_of(Code.BATCH_NAME_TAKEN)
    highest[name.session] = max(last, name.sequence)
    return None


def _append(
    state: LogState, batch: Append, now: int, writes: Batch, appended: dict[LogName, tuple[int, int, int, int]]
) -> Appended:
    if batch.until is not None and now > batch.until:
        raise error_of(Code.EXPIRED)
    topic, bucket = state.topic.number, state.buckets[batch.bucket]
    bucket.settle(now)
    bucket.last_ts = ts = max(bucket.last_ts, now)
    base, size = bucket.next, len(batch.records)
    entry = BatchEntry(
        base, batch.count, ts, batch.rollback_ms, aborted=False, name=batch.name, address=None, prepared=batch.prepared
    )
    writes.put_frame(
        records.batch_key(topic, bucket.number, base), batch.records, topic, suffix=records.pack_batch(entry)
    )
    bucket.next, bucket.size, bucket.unmoved = entry.end, bucket.size + size, bucket.unmoved + size
    if batch.prepared:
        bucket.open_window(base, NEVER_MS, NEVER_MS)
    elif batch.rollback_ms:
        # By the clock: the timestamp is ahead of it after the clock was set back.
        bucket.open_window(base, now + batch.rollback_ms, batch.rollback_ms)
    bucket.added += size
    state.put_minute(bucket, bucket.count(ts, base, batch.count, size), writes)
    state.put_bucket(bucket, writes)
    state.add_to_tail(bucket, StoredBatch(base, batch.count, ts, batch.records))
    if batch.name is not None:
        appended[batch.name] = bucket.number, base, batch.count, ts
        writes.put(records.name_key(topic, batch.name), records.pack_name(bucket.number, base, batch.count, ts))
        if batch.name.sequence >= NAMES_PER_SESSION:
            old = LogName(batch.name.session, batch.name.sequence - NAMES_PER_SESSION)
            writes.delete(records.name_key(topic, old))
    return Appended(base, ts)
