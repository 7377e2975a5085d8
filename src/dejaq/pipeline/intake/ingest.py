"""One batch of segments into the lake: events, then the messages they change, then the facts of their minutes.

A batch reads the new segments, the pending messages due on the days it touches, and what the lake has of the minutes it
touches. Where events may belong before others that the lake has, it also looks for the messages of which that is so
(`dejaq.pipeline.intake.merging`).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from dejaq.journal.extents import journal_extents
from dejaq.pipeline.intake import holding, messages
from dejaq.pipeline.intake.events import (
    KEY,
    MINUTE_MS,
    TOPIC,
    Touched,
    handed_ms,
    joined,
    read_segments,
    touched_by,
    touched_by_segments,
)
from dejaq.pipeline.intake.facts import facts, within
from dejaq.pipeline.intake.handovers import given_back, hand_overs
from dejaq.pipeline.intake.holding import (
    HELD,
    TicketCut,
    cut_before,
    divided,
    first_of_origins,
    tickets_after,
    with_tickets,
)
from dejaq.pipeline.intake.merging import Again, again
from dejaq.pipeline.intake.segments import Checked, Segment, SegmentBatch, add_all, batches, check, new_segments
from dejaq.pipeline.lake.commit import Commit
from dejaq.pipeline.lake.compaction import Compaction
from dejaq.pipeline.lake.gaps import begins
from dejaq.pipeline.lake.lake import Lake
from dejaq.pipeline.lake.tables import TABLES
from dejaq.pipeline.lake.upgrading import upgrade
from dejaq.pipeline.spark.failures import explained
from dejaq.pipeline.spark.session import suited_to

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

EVENTS_MAX_DEFAULT = 10_000_000
# If a partition of a table has more small files than this, they are made one. Each segment is a file of events; a batch
# adds files to many hours of pending messages, which are read more often.
FILES_MAX = {"events": 256, "messages": 64, "releases": 64, "facts": 8, "log_messages": 64}
BYTES_SMALL = 16 * 1024 * 1024
# Of pending messages: so many names are sent to every task. More are exchanged between tasks.
_ROWS_SENT_MAX = 1_000_000
_SECRET = secrets.token_hex(16)


@dataclass(frozen=True, slots=True)
class Ingested:
    """A batch that is part of the lake now."""

    version: int
    segments: int
    events: int
    late: bool
    seconds: float


def run(
    lake: Lake,
    journal: Path,
    *,
    events_max: int = EVENTS_MAX_DEFAULT,
    step: Callable[[str, int], None] | None = None,
    keep_ms: int | None = None,
) -> Iterator[Ingested]:
    """Add every segment that is not yet in the lake; yields one result per batch, after its commit.

    `step` is called before each step, with its name and the number of events. The next commit and those after it keep
    what they replace for `keep_ms`.
    """
    say = step or (lambda what, events: None)
    with lake.writing(), explained(f"Spark could not write the lake {lake.files.address}"):
        if keep_ms is not None:
            lake.head = replace(lake.head, keep_ms=keep_ms)
        upgrade(lake)
        # The statements first: a broker that writes meanwhile only adds segments after them.
        extents = journal_extents(journal)
        found = new_segments(journal, dict(lake.head.records))
        plan = list(batches(found, dict(lake.head.records), events_max))
        if not plan and lake.head.files(HELD):
            # A run that ended between two batches.
            plan = [SegmentBatch((), late=False)]
        lake.head = with_tickets(lake)
        with Compaction(lake, FILES_MAX, BYTES_SMALL) as compaction:
            for number, batch in enumerate(plan):
                begun = time.monotonic()
                say("checking", batch.events)
                following = [segment for later in plan[number + 1 :] for segment in later.segments]
                with suited_to(lake.spark, lake.head.events + batch.events):
                    _ingest(lake, batch, following, begins(extents), partial(_say, say, batch.events))
                yield Ingested(
                    version=lake.head.version,
                    segments=len(batch.segments),
                    events=batch.events,
                    late=batch.late,
                    seconds=time.monotonic() - begun,
                )
                # What the batch before left has been compacted meanwhile.
                compaction.finish()
                compaction.begin()
            compaction.finish()


def _say(say: Callable[[str, int], None], events: int, what: str) -> None:
    say(what, events)


def _ingest(
    lake: Lake,
    batch: SegmentBatch,
    following: Sequence[Segment],
    begins: Mapping[str, int],
    say: Callable[[str], None],
) -> None:
    checked = [check(segment) for segment in batch.segments]
    name = lake.new_batch()
    is_behind = batch.late or holding.is_behind(_with_stores(lake.head, checked), checked)
    # What is added up again is added up from all events of the lake, so that none of them may wait.
    cut = TicketCut({}) if is_behind else cut_before([check(one) for one in first_of_origins(following)], checked)
    new, waiting = divided(lake, checked, cut)
    say("events")
    after = lake.head.with_table("events", replaced=(), added=_put_events(lake, checked, name))
    held = [] if waiting is None else lake.write(HELD, waiting, name)
    after = after.with_table(HELD, replaced=lake.head.partitions(HELD), added=held)
    say("messages")
    touched = touched_by_segments(checked) or touched_by(new)
    if lake.head.files(HELD):
        touched = touched.and_of(touched_by(lake.read(HELD)))
    after = replace(
        _with_stores(after, checked),
        events=after.events + batch.events,
        records=add_all(dict(after.records), batch.segments),
        newest_ms=_newest(after.newest_ms, touched.newest_ms),
        begins={**after.begins, **begins},
        tickets=tickets_after(after, checked),
        held_from=cut.tickets,
    )
    drops = messages.drops_of(new) if touched.dropped else None
    minutes = dict(touched.minutes)
    if lake.head.files("messages") and is_behind:
        begin_ms = min(first for first, _ in touched.minutes.values())
        with again(lake, after, new, dropped=touched.dropped, begin_ms=begin_ms, late=batch.late) as found:
            after = _put_messages(lake, after, name, _change(lake, new, touched, drops, after.reached_ms, found))
            minutes = joined(minutes, found.touched.minutes)
    else:
        after = _put_messages(lake, after, name, _change(lake, new, touched, drops, after.reached_ms))
    say("facts")
    added = lake.write("facts", _facts(lake, after, minutes), name)
    lake.commit(after.with_table("facts", replaced=[f"day={day}" for day in minutes], added=added))


def _with_stores(commit: Commit, checked: Sequence[Checked]) -> Commit:
    """The state, knowing the stores of these segments that do not have the names of their origins."""
    found = {one.segment.origin: one.store for one in checked if one.store != one.segment.origin}
    return replace(commit, stores={**commit.stores, **found})


def _put_events(lake: Lake, checked: Sequence[Checked], batch: str) -> list[str]:
    """Segments of one day are taken as they are; the few that reach over midnight are written in two."""
    over_midnight = [one.segment for one in checked if one.day is None]
    written = lake.write("events", read_segments(lake.spark, over_midnight), batch) if over_midnight else []
    of_a_day = {one.segment.path: f"day={one.day}" for one in checked if one.day is not None}
    return [*written, *lake.adopt("events", of_a_day, batch)]


def _newest(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    return {origin: max(before.get(origin, 0), now.get(origin, 0)) for origin in {*before, *now}}


@dataclass(frozen=True, slots=True)
class _Change:
    """The rows that a batch writes, and the partitions and files they take the place of."""

    messages: DataFrame
    messages_replaced: list[str]
    messages_dropped: list[str]
    releases: DataFrame | None
    releases_dropped: list[str]


def _put_messages(lake: Lake, after: Commit, name: str, change: _Change) -> Commit:
    """Write messages and releases at once: while the tasks of one table are few, those of the other run."""
    releases = change.releases
    with ThreadPoolExecutor(1, "releases", initializer=_share_cores, initargs=(lake.spark,)) as beside:
        back = None if releases is None else beside.submit(lake.write, "releases", releases, name)
        added = lake.write("messages", change.messages, name)
    after = after.with_table(
        "messages", replaced=change.messages_replaced, dropped=change.messages_dropped, added=added
    )
    return after if back is None else after.with_table("releases", dropped=change.releases_dropped, added=back.result())


def _share_cores(spark: SparkSession) -> None:
    """Let the queries of this thread have their share of the cores, also while those of another have tasks waiting."""
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", "beside")


def _change(
    lake: Lake, new: DataFrame, touched: Touched, drops: DataFrame | None, now_ms: int, found: Again | None = None
) -> _Change:
    """What events do to the lake: added to its pending messages, but for those `found` to be added up again."""
    replaced = _reached(lake, new, drops, found)
    rows = messages.from_events(new)
    if replaced:
        rows = rows.unionByName(messages.from_rows(lake.read("messages", replaced)))
    if found is not None:
        rows = rows.join(found.keys, list(KEY), "left_anti")
    changed = messages.fold(rows, drops if found is None else found.drops, now_ms=now_ms)
    releases: DataFrame | None = None
    gone: list[str] = []
    if touched.gave_back:
        # By one number: another message that has the same one is without releases, and adds nothing. Sent to all tasks,
        # so that the events of all other messages are not exchanged between tasks a second time.
        name = F.xxhash64(*KEY).alias("name")
        returned = F.broadcast(new.where("kind = 'released'").select(name).distinct())
        releases = given_back(rows.select("*", name).join(returned, "name", "left_semi").drop("name"))
    if found is None:
        return _Change(changed, replaced, [], releases, [])
    columns = [*TABLES["messages"].columns, *TABLES["messages"].partitioned_by]
    changed = changed.select(*columns).unionByName(found.messages(lake))
    if found.touched.gave_back:
        back, gone = found.releases(lake)
        releases = back if releases is None else back.unionByName(releases.select(*back.columns))
    return _Change(changed, replaced, found.files, releases, gone)


def _reached(lake: Lake, new: DataFrame, drops: DataFrame | None, found: Again | None) -> list[str]:
    """The partitions with a pending message that these events concern.

    Messages are compared by one number. Two that have the same one only cause a partition to be written again.
    """
    names, by = lake.head.partitions("messages"), TABLES["messages"].partitioned_by
    opened = [name for name in names if name.startswith(f"state={messages.OPEN}/")]
    if not opened:
        return []
    pending = lake.read("messages", opened)
    # What is created has no row yet.
    keys = new.where(F.col("kind") != "created").select(_name())
    if found is not None:
        keys = keys.unionByName(found.keys.select(_name()))
    counts = [lake.delta.rows("messages", file) for name in opened for file in names[name]]
    named = pending.select(_name(), *by)
    if sum(_ROWS_SENT_MAX if count is None else count for count in counts) < _ROWS_SENT_MAX:
        named = F.broadcast(named)
    reached = keys.join(named, "name").select(*by)
    if drops is not None:
        reached = reached.unionByName(pending.join(F.broadcast(drops), list(TOPIC), "left_semi").select(*by))
    rows = reached.distinct().collect()
    return sorted("/".join(f"{name}={row[name]}" for name in by) for row in rows)


def _name() -> Column:
    """A message as one number, which is sent and looked up faster than texts.

    The text at its beginning is secret, so that nobody can choose ids that have the same number.
    """
    return F.xxhash64(F.lit(_SECRET), *KEY).alias("name")


def _facts(lake: Lake, after: Commit, minutes: Mapping[str, tuple[int, int]]) -> DataFrame:
    """The facts of the days concerned: the minutes concerned are counted again, the others are unchanged.

    Of the days, only the files are read that may have something of these minutes.
    """
    days = [f"day={day}" for day in minutes]

    def of_minutes(table: str, column: str, unit: int, above: str = "") -> DataFrame:
        files = [
            file
            for day, (first, last) in minutes.items()
            for file in lake.files_within(
                table, f"{above}day={day}", column, first * unit, (last + MINUTE_MS) * unit, commit=after
            )
        ]
        return lake.read_files(table, files)

    events = of_minutes("events", "at_ms", 1)
    done = of_minutes("messages", "handed_us", 1000, f"state={messages.DONE}/")
    handed = hand_overs(done, of_minutes("releases", "handed_us", 1000))
    counted = facts(events.where(within(minutes, events["at_ms"])), handed.where(within(minutes, handed_ms())))
    before = lake.read("facts", days)
    stay = before.where(~within(minutes, before["minute_ms"]))
    columns = [*TABLES["facts"].columns, *TABLES["facts"].partitioned_by]
    return counted.select(*columns).unionByName(stay.select(*columns))
