"""Events that belong before others in the lake: late segments, and the journals of brokers that share a store.

A message of which that is so has a row that ends behind one of the new events. From there on its row is not a sum that
can be added to, so it is added up again from its events; those that ended before stay as they are. The lives of an id
follow one another, so that what ended before the first new event has no part in what comes behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from dejaq.pipeline.intake import messages
from dejaq.pipeline.intake.events import KEY, TOPIC, Touched, order_of, touched_by
from dejaq.pipeline.intake.handovers import given_back
from dejaq.pipeline.intake.segments import DAY_MS, ROW_BITS, day_name
from dejaq.pipeline.lake.commit import Commit
from dejaq.pipeline.lake.lake import Lake
from dejaq.pipeline.lake.tables import TABLES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# The largest difference between the times that two brokers record for one message; they stop serving long before.
CLOCKS_MS = 60_000
_LEASE = (*KEY, "lease")


@dataclass(frozen=True, slots=True)
class Again:
    """The messages to be added up again."""

    # Each with the place of its `first` new event, and the lives whose rows are `gone`.
    keys: DataFrame
    # Their events from the life on in which that one falls.
    history: DataFrame
    touched: Touched
    # The ends of topics since then.
    drops: DataFrame
    # Where the rows are that do not hold any more.
    files: list[str]
    # The time of the newest event.
    now_ms: int

    def messages(self, lake: Lake) -> DataFrame:
        """What is in `files` from now on, and what takes the place of the open rows."""
        parts = messages.from_events(self.history)
        added = messages.fold(parts, self.drops, now_ms=self.now_ms).join(self.keys, list(KEY))
        # The others are in the lake.
        reach = (F.col("last_order") >= F.col("first")) | (F.col("outcome") == messages.PENDING)
        reach = reach | F.array_contains("gone", F.coalesce("born", F.lit(-1)))
        before = lake.read_files("messages", self.files).join(self.keys, list(KEY), "left")
        stay = F.col("first").isNull() | (F.col("last_order") < F.col("first"))
        return _columns(added.where(reach), "messages").unionByName(_columns(before.where(stay), "messages"))

    def releases(self, lake: Lake) -> tuple[DataFrame, list[str]]:
        """The deliveries that were released since then, and the files whose other rows are among them."""
        parts = given_back(messages.from_events(self.history)).join(self.keys, list(KEY))
        back = parts.where(F.col("order") >= F.col("first"))
        there = [
            file for day in self.touched.minutes for file in lake.head.partitions("releases").get(f"day={day}", ())
        ]
        known = lake.read_files("releases", there, named=True).join(back, list(_LEASE), "left_semi")
        files = [row.file for row in known.select("file").distinct().collect()]
        stay = lake.read_files("releases", files).join(back, list(_LEASE), "left_anti")
        return _columns(back, "releases").unionByName(_columns(stay, "releases")), files


@contextmanager
def again(lake: Lake, after: Commit, new: DataFrame, *, dropped: bool, begin_ms: int, late: bool) -> Iterator[Again]:
    """Find what is to be added up again, for as long as it is needed.

    `begin_ms` is the time of the earliest new event. Where brokers share a store, nothing that ended long before can be
    concerned; `late` segments of one broker may belong anywhere.
    """
    since_ms = 0 if late else begin_ms - CLOCKS_MS
    hits = _rows_behind(lake, new, since_ms, dropped=dropped).persist()
    try:
        opened = [name for name in lake.head.partitions("messages") if name.startswith(f"state={messages.OPEN}/")]
        firsts = hits.groupBy(*KEY).agg(F.min("first").alias("first"))
        pending = lake.read("messages", opened).join(firsts, list(KEY)).select(*KEY, "first", "born", *_begun())
        keys = (
            hits.select(*KEY, "first", "born", "begun", "begun_ms")
            .unionByName(pending)
            .groupBy(*KEY)
            .agg(
                F.min("first").alias("first"),
                F.min(F.least("begun", "first")).alias("begun"),
                F.min("begun_ms").alias("begun_ms"),
                F.collect_set("born").alias("gone"),
            )
            .persist()
        )
        try:
            (known,) = keys.agg(F.min("begun_ms").alias("ms")).collect()
            floor_ms = 0 if late else min(begin_ms, begin_ms if known.ms is None else known.ms) - CLOCKS_MS
            events = _events_since(lake, after, floor_ms)
            history = events.join(keys.select(*KEY, "begun"), list(KEY)).where(order_of() >= F.col("begun"))
            if known.ms is None:
                history = history.limit(0)
            # Four queries look at it.
            history.persist()
            found = hits.where(F.col("state") == messages.DONE).select("file").distinct().collect()
            yield Again(
                keys=keys.select(*KEY, "first", "gone"),
                history=history,
                touched=touched_by(history),
                drops=messages.drops_of(events),
                files=sorted(row.file for row in found),
                now_ms=after.reached_ms,
            )
            history.unpersist()
        finally:
            keys.unpersist()
    finally:
        hits.unpersist()


def _rows_behind(lake: Lake, new: DataFrame, since_ms: int, *, dropped: bool) -> DataFrame:
    """The messages of the lake that end behind a new event, with its place, and where their rows begin and are."""
    rows = lake.read_files("messages", lake.head.files_since("messages", since_ms), named=True)
    recent = rows.where((F.col("last_ms") >= since_ms) | (F.col("finished_ms") >= since_ms)).select(
        *KEY, "last_order", "outcome", "state", "born", "file", *_begun()
    )
    is_drop, first = F.col("kind") == messages.TOPIC_DROPPED, F.min(order_of()).alias("first")
    hits = recent.join(new.where(~is_drop).groupBy(*KEY).agg(first), list(KEY))
    if dropped:
        # A message may have ended with its topic earlier than the lake believes.
        gone = recent.where(F.col("outcome") == messages.DROPPED)
        columns = hits.columns
        ended = gone.join(new.where(is_drop).groupBy(*TOPIC).agg(first), list(TOPIC))
        hits = hits.unionByName(ended.select(*columns))
    return hits.where(F.col("last_order") > F.col("first"))


def _begun() -> list[Column]:
    """Where the row of a message begins; 0 where an earlier release did not say."""
    born = F.shiftleft(F.col("born"), ROW_BITS)
    return [
        F.coalesce("first_order", born, F.lit(0)).alias("begun"),
        F.coalesce("first_ms", "created_ms", F.lit(0)).alias("begun_ms"),
    ]


def _events_since(lake: Lake, after: Commit, ms: int) -> DataFrame:
    first = f"day={day_name(max(0, ms) // DAY_MS)}"
    days = [day for day in after.partitions("events") if day >= first]
    return lake.read("events", days, commit=after).where(F.col("at_ms") >= ms)


def _columns(rows: DataFrame, table: str) -> DataFrame:
    return rows.select(*TABLES[table].columns, *TABLES[table].partitioned_by)
