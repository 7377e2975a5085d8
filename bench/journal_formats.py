"""The cost of a segment of the journal in each format: CPU time and bytes per event, for the steady work of a queue.

    python -m bench.journal_formats [--natural-ids]

Every message is created, leased and deleted in batches of 1000. The CPU time is that of the one working thread,
best of five.
"""

from __future__ import annotations

import argparse
import io
import random
import time
from collections.abc import Callable
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq

from dejaq.domain.batch import CreateBatch, IdSpan, LeaseSet
from dejaq.domain.context import ANONYMOUS
from dejaq.domain.ids import ProducerSession
from dejaq.journal.expansion import Expansion
from dejaq.journal.schema import NAMES, WRITTEN
from dejaq.journal.segment import ENCODINGS, ROW_GROUP_ROWS, STATISTICS
from dejaq.storage.outbox import DELETED, Outbox

BATCHES = 200
ROWS = 1_000
EVENTS = 3 * BATCHES * ROWS
REPEATS = 5
Parquet = dict[str, object]

CHOSEN: Parquet = {
    "compression": "zstd",
    "use_dictionary": list(NAMES),
    "column_encoding": ENCODINGS,
    "write_statistics": list(STATISTICS),
}
FORMATS: dict[str, Parquet] = {
    "Parquet, as chosen": CHOSEN,
    "Parquet, ids by their prefixes": {**CHOSEN, "column_encoding": {**ENCODINGS, "id": "DELTA_BYTE_ARRAY"}},
    "Parquet, plain numbers": {**CHOSEN, "column_encoding": None},
    "Parquet, lz4": {**CHOSEN, "compression": "lz4"},
    "Parquet, pyarrow's defaults": {"compression": "snappy"},
}


def records(*, natural: bool) -> list[bytes]:
    """The records that a store writes while messages are created and deleted."""
    chance = random.Random(1)
    outbox, packed = Outbox(0), []
    now = 1_800_000_000_000
    session = ProducerSession(now, 7)
    for number in range(BATCHES):
        now += 5
        batch = CreateBatch(
            owner="billing",
            session=session,
            sequence=number * ROWS,
            ts=sorted(now + chance.randint(0, 2_000) for _ in range(ROWS)),
            bodies=[chance.randbytes(100) for _ in range(ROWS)],
            ids=[f"order-{number * ROWS + row}" for row in range(ROWS)] if natural else None,
            bucket=number % 16,
        )
        outbox.created("orders", batch, [(0, ROWS)])
        packed.append(_taken(outbox, now))
        first = number * ROWS
        spans = [IdSpan(ROWS, ids=batch.ids) if natural else IdSpan(ROWS, session.prefix(number % 16), first)]
        lease = LeaseSet(
            lease_id=2**40 + number, consumer="worker", expires=now + 30_000, spans=spans, ts=list(batch.ts), bodies=[]
        )
        outbox.leased("orders", lease)
        packed.append(_taken(outbox, now))
        handed = [ts * 1_000 + chance.randint(0, 900) for ts in batch.ts]
        outbox.settled(DELETED, "orders", consumer="worker", lease_id=lease.lease_id, spans=spans, handed_us=handed)
        packed.append(_taken(outbox, now))
    return packed


def _taken(outbox: Outbox, now: int) -> bytes:
    entry = outbox.take(now, ANONYMOUS)
    assert entry is not None
    return entry[1]


def expanded(packed: list[bytes]) -> list[pa.RecordBatch]:
    """The batches from which a segment is written."""
    expansion = Expansion("0123456789abcdef", rows=ROW_GROUP_ROWS + ROWS)
    batches: list[pa.RecordBatch] = []
    for record in packed:
        expansion.add(record)
        if expansion.rows >= ROW_GROUP_ROWS:
            batches.append(_copied(expansion.take()))
    batches.append(_copied(expansion.take()))
    return batches


def _copied(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A separate copy of a batch, because the expansion reuses its memory."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return next(iter(pa.ipc.open_stream(sink.getvalue())))


def parquet(batches: list[pa.RecordBatch], options: Parquet) -> int:
    """The size of the batches as Parquet."""
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, WRITTEN, store_schema=False, **options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return len(sink.getvalue())


def ipc(batches: list[pa.RecordBatch], compression: str | None) -> int:
    """The size of the batches as an Arrow file."""
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False, emit_dictionary_deltas=True)
    # A file may only extend its dictionaries, and not replace them.
    with pa.ipc.new_stream(sink, WRITTEN, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return len(sink.getvalue())


def measured(work: Callable[[], object]) -> tuple[float, object]:
    """(CPU ns per event, the result)."""
    best, result = 1e9, None
    for _ in range(REPEATS):
        began = time.thread_time()
        result = work()
        best = min(best, time.thread_time() - began)
    return best * 1e9 / EVENTS, result


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--natural-ids", action="store_true")
    packed = records(natural=parser.parse_args().natural_ids)
    expansion = Expansion("0123456789abcdef", rows=ROW_GROUP_ROWS + ROWS)

    def expand() -> None:
        for record in packed:
            expansion.add(record)
            if expansion.rows >= ROW_GROUP_ROWS:
                expansion.take()
        expansion.take()

    print(f"records in the store: {sum(map(len, packed)) / EVENTS:.2f} bytes per event")
    print(f"expanding them: {measured(expand)[0]:.0f} ns per event")
    batches = expanded(packed)
    works: dict[str, Callable[[], object]] = {
        name: partial(parquet, batches, options) for name, options in FORMATS.items()
    }
    for compression in ("lz4", "zstd", None):
        works[f"Arrow IPC, {compression or 'plain'}"] = partial(ipc, batches, compression)
    for name, work in works.items():
        nanoseconds, size = measured(work)
        print(f"{name:<32} {nanoseconds:6.0f} ns  {int(str(size)) / EVENTS:7.2f} bytes per event")


if __name__ == "__main__":
    main()
