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
    origin=TEXT,
    sequence=LONG,
    row=INT,
    at_ms=LONG,
    kind=TEXT,
    topic=TEXT,
    id=TEXT,
    actor=TEXT,
    lease=LONG,
    expires_ms=LONG,
    ts_ms=LONG,
    priority=INT,
    attempts=INT,
    body_bytes=INT,
    body_crc=LONG,
    handed_us=LONG,
    store=TEXT,
    ticket=LONG,
    # The authenticated caller; null in segments of earlier releases.
    principal=TEXT,
)

# One row per message: its whole life so far.
MESSAGES = _schema(
    store=TEXT,
    topic=TEXT,
    id=TEXT,
    # The record that created it, which distinguishes it from an earlier one with the same id; null if unknown.
    born=LONG,
    owner=TEXT,
    priority=INT,
    created_ms=LONG,
    # The place on the timeline it was given last, by its owner or by a release.
    scheduled_ms=LONG,
    first_lease_ms=LONG,
    attempts=INT,
    outcome=TEXT,
    finished_ms=LONG,
    # When user code got it last, and how long after its time.
    handed_us=LONG,
    lateness_ms=REAL,
    # Whether that hand-over is the one that ended in its delete.
    delivered=TRUTH,
    body_bytes=INT,
    body_crc=LONG,
    moves=INT,
    edits=INT,
    extensions=INT,
    expiries=INT,
    releases=INT,
    recalls=INT,
    # The last lease, when its rows were due, and its end while it stands or after it was lost.
    lease=LONG,
    lease_due_ms=LONG,
    lease_until_ms=LONG,
    # The last event.
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
    born=LONG,
    consumer=TEXT,
    lease=LONG,
    due_ms=LONG,
    handed_us=LONG,
    lateness_ms=REAL,
    released_ms=LONG,
)

# One row per topic and minute in which something happened.
FACTS = _schema(
    topic=TEXT,
    minute_ms=LONG,
    created=LONG,
    created_bytes=LONG,
    leased=LONG,
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
    lateness_p50_ms=REAL,
    lateness_p99_ms=REAL,
    lateness_max_ms=REAL,
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
        Table("messages", MESSAGES, ("state", "day")),
        Table("releases", RELEASES),
        Table("facts", FACTS),
        # Events that no message has yet: `dejaq.pipeline.intake.holding`.
        Table("held", EVENTS, (), optional=True),
        Table("log_messages", LOG_MESSAGES, ("topic", "day"), optional=True),
    )
}
