"""The tables of the lake: their columns, and by what they are cut into partitions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
)

LONG, INT, TEXT, REAL, TRUTH = LongType(), IntegerType(), StringType(), DoubleType(), BooleanType()


def _schema(**columns: DataType) -> StructType:
    return reduce(lambda schema, column: schema.add(*column), columns.items(), StructType())


# As journaled. The same columns as `dejaq.journal.schema`; a store that one broker has is called by its origin.
EVENTS = _schema(
    # The journal that has the record: one for each broker.
    origin=TEXT,
    # The number of the record in its journal, and of the event in its record.
    sequence=LONG,
    row=INT,
    # When it happened, by the broker's clock.
    at_ms=LONG,
    # created, leased, extended, released, expired, moved, edited, cancelled, deleted, dead_lettered, recalled,
    # topic_dropped.
    kind=TEXT,
    topic=TEXT,
    id=TEXT,
    # The producer group or the consumer.
    actor=TEXT,
    # The lease concerned; 0 if none is.
    lease=LONG,
    expires_ms=LONG,
    # Where the message is on the timeline from then on; of a lease, when the message was due.
    ts_ms=LONG,
    priority=INT,
    attempts=INT,
    body_bytes=INT,
    # The CRC-32 of the body.
    body_crc=LONG,
    # When user code got the message, in microseconds.
    handed_us=LONG,
    # The store that several brokers share; otherwise null in the files, and the origin when the pipeline reads it.
    store=TEXT,
    # The place among all changes of a shared store.
    ticket=LONG,
    # The authenticated caller; null in segments of earlier releases.
    principal=TEXT,
)

# One row per message: its whole life so far.
MESSAGES = _schema(
    # The store that has the message; with topic and id, this identifies it.
    store=TEXT,
    topic=TEXT,
    id=TEXT,
    # The record that created it, which distinguishes it from an earlier one with the same id; null if unknown.
    born=LONG,
    # The producer group.
    owner=TEXT,
    priority=INT,
    created_ms=LONG,
    # The place on the timeline it was given last, by its owner or by a release.
    scheduled_ms=LONG,
    first_lease_ms=LONG,
    # The number of leases, without those that were recalled.
    attempts=INT,
    # pending, deleted, cancelled, dead_lettered, or dropped with its topic.
    outcome=TEXT,
    # When it ended.
    finished_ms=LONG,
    # When user code got it last, in microseconds.
    handed_us=LONG,
    # How long after its time that was; null if the lease is unknown.
    lateness_ms=REAL,
    # Whether that hand-over is the one that ended in its delete.
    delivered=TRUTH,
    body_bytes=INT,
    # The CRC-32 of the body.
    body_crc=LONG,
    # How often it was moved, edited, extended, expired, released, and recalled.
    moves=INT,
    edits=INT,
    extensions=INT,
    expiries=INT,
    releases=INT,
    recalls=INT,
    # The last lease.
    lease=LONG,
    # When the message was due as it was leased last.
    lease_due_ms=LONG,
    # The end of the last lease, while it is held or after it was lost.
    lease_until_ms=LONG,
    # The time of the last event, and its place in the history of the store.
    last_ms=LONG,
    last_order=LONG,
    # The first event that is known, where that is not its creation.
    first_ms=LONG,
    first_order=LONG,
)

# One row for each time user code got a message and gave it back; the hand-over that ends in a delete is in `messages`.
RELEASES = _schema(
    store=TEXT,
    topic=TEXT,
    id=TEXT,
    # As in `messages`.
    born=LONG,
    # The consumer that released it.
    consumer=TEXT,
    lease=LONG,
    # When it was due as it was leased.
    due_ms=LONG,
    # When user code got it, in microseconds, and how long after its time.
    handed_us=LONG,
    lateness_ms=REAL,
    released_ms=LONG,
)

# One row per topic and minute in which something happened.
FACTS = _schema(
    topic=TEXT,
    # The start of the minute.
    minute_ms=LONG,
    # The number of events of each kind.
    created=LONG,
    created_bytes=LONG,
    leased=LONG,
    # The deliveries to user code in this minute.
    delivered=LONG,
    deleted=LONG,
    cancelled=LONG,
    dead_lettered=LONG,
    expired=LONG,
    released=LONG,
    extended=LONG,
    moved=LONG,
    edited=LONG,
    recalled=LONG,
    # Of these deliveries.
    lateness_p50_ms=REAL,
    lateness_p99_ms=REAL,
    lateness_max_ms=REAL,
    # Deliveries at least a second late, and before their time.
    late=LONG,
    early=LONG,
)


# One row per message of a log topic that is kept. A log has no journal: it is its own record.
LOG_MESSAGES = _schema(
    bucket=INT,
    offset=LONG,
    # When the broker appended it.
    ts_ms=LONG,
    key=BinaryType(),
    headers=MapType(TEXT, TEXT),
    body=BinaryType(),
)


@dataclass(frozen=True, slots=True)
class Table:
    """A table by name."""

    name: str
    schema: StructType
    partitioned_by: tuple[str, ...] = ("day",)
    # Columns whose values differ from row to row: to look each one up in a dictionary is work for nothing.
    unlike: tuple[str, ...] = ()
    # Whether a lake may be without it, also for other engines.
    optional: bool = False

    @property
    def columns(self) -> list[str]:
        """Its columns without those of the partition."""
        return self.schema.fieldNames()


TABLES = {
    table.name: table
    for table in (
        Table("events", EVENTS),
        Table(
            "messages",
            MESSAGES,
            ("state", "day"),
            unlike=("id", "handed_us", "lateness_ms", "body_crc", "last_order", "first_order"),
        ),
        Table("releases", RELEASES, unlike=("id", "handed_us", "lateness_ms")),
        Table("facts", FACTS),
        # Events that no message has yet: `dejaq.pipeline.intake.holding`.
        Table("held", EVENTS, (), optional=True),
        Table("log_messages", LOG_MESSAGES, ("topic", "day"), unlike=("offset", "body"), optional=True),
    )
}
