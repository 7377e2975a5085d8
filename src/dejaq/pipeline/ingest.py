"""One batch of segments into the lake: events, then the messages they change, then the facts of their minutes.

A batch reads the new segments, the pending messages due on the days it touches, and what the lake has of the minutes it
touches. Segments that come behind later ones of the same origin take another way: every message they name is added up
again from all of its events.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dejaq.pipeline import messages
from dejaq.pipeline.commit import Commit
from dejaq.pipeline.compaction import compact
from dejaq.pipeline.events import KEY, Touched, handed_ms, read_segments, touched_by, touched_by_segments
from dejaq.pipeline.facts import facts, within
from dejaq.pipeline.failures import explained
from dejaq.pipeline.handovers import given_back, hand_overs
from dejaq.pipeline.lake import Lake
from dejaq.pipeline.segments import Batch, Checked, add_all, batches, check, new_segments
from dejaq.pipeline.session import suited_to
from dejaq.pipeline.tables import TABLES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

EVENTS_MAX_DEFAULT = 10_000_000
# Of a partition with more small files than this, they are made one.
FILES_MAX, BYTES_SMALL = 256, 16 * 1024 * 1024
_TOPIC = ("origin", "topic")


@dataclass(frozen=True, slots=True)
class Ingested:
    """A batch that is part of the lake now."""

    version: int
    segments: int
    events: int
    late: bool
    seconds: float


def run(
    lake: Lake, journal: Path, *, events_max: int = EVENTS_MAX_DEFAULT, step: Callable[[str, int], None] | None = None
) -> Iterator[Ingested]:
    """Take in every segment that is not in the lake yet; one result a batch, each committed when it is told.

    `step` hears what is done and how many events that concerns, before it is done.
    """
    say = step or (lambda what, events: None)
    with lake.writing(), explained():
        found = new_segments(journal, dict(lake.head.records))
        for batch in batches(found, dict(lake.head.records), events_max):
            begun = time.monotonic()
            say("checking", batch.events)
            checked = [check(segment) for segment in batch.segments]
            with suited_to(lake.spark, lake.head.events + batch.events):
                _ingest(lake, batch, checked, partial(_say, say, batch.events))
            yield Ingested(
                version=lake.head.version,
                segments=len(batch.segments),
                events=batch.events,
                late=batch.late,
                seconds=time.monotonic() - begun,
            )
        if found:
            compact(lake, files_max=FILES_MAX, bytes_small=BYTES_SMALL)


def _say(say: Callable[[str, int], None], events: int, what: str) -> None:
    say(what, events)


def _ingest(lake: Lake, batch: Batch, checked: Sequence[Checked], say: Callable[[str], None]) -> None:
    name = lake.new_batch()
    new = read_segments(lake.spark, batch.segments)
    say("events")
    after = lake.head.with_table("events", replaced=(), added=_put_events(lake, checked, name))
    change = _late_change(lake, after, new) if batch.late else _change(lake, new, touched_by_segments(checked))
    say("messages")
    after = after.with_table(
        "messages", replaced=change.messages_replaced, added=lake.write("messages", change.messages, name)
    )
    if change.releases is not None:
        added = lake.write("releases", change.releases, name)
        after = after.with_table("releases", replaced=change.releases_replaced, added=added)
    say("facts")
    days = [f"day={day}" for day in change.touched.minutes]
    added = lake.write("facts", _facts(lake, after, change.touched.minutes), name)
    after = after.with_table("facts", replaced=days, added=added)
    lake.commit(
        replace(
            after,
            events=after.events + batch.events,
            records=add_all(dict(after.records), batch.segments),
            newest_ms=_newest(after.newest_ms, change.touched.newest_ms),
        )
    )


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
    """The rows a batch writes, and the partitions they take the place of."""

    touched: Touched
    messages: DataFrame
    messages_replaced: list[str]
    releases: DataFrame | None
    releases_replaced: list[str]


def _change(lake: Lake, new: DataFrame, touched: Touched | None) -> _Change:
    """What events that follow on those in the lake do to it."""
    touched = touched or touched_by(new)
    keys = new.select(*KEY).distinct()
    drops = messages.drops_of(new) if touched.dropped else None
    open_parts = [name for name in lake.head.partitions("messages") if name.startswith(f"state={messages.OPEN}/")]
    pending = lake.read("messages", open_parts)
    replaced = _partitions_with(pending, keys, "messages") if open_parts else []
    if drops is not None and open_parts:
        replaced = sorted({*replaced, *_partitions_with(pending, drops, "messages", by=_TOPIC)})
    rows = messages.from_events(new)
    if replaced:
        rows = rows.unionByName(messages.from_rows(lake.read("messages", replaced)))
    releases = None
    if touched.gave_back:
        returned = new.where("kind = 'released'").select(*KEY).distinct()
        releases = given_back(rows.join(returned, list(KEY), "left_semi"))
    return _Change(
        touched=touched,
        messages=messages.fold(rows, drops),
        messages_replaced=replaced,
        releases=releases,
        releases_replaced=[],
    )


def _late_change(lake: Lake, after: Commit, new: DataFrame) -> _Change:
    """What events do that belong before others in the lake: their messages are added up again from the beginning."""
    everything = lake.read("events", commit=after)
    drops = messages.drops_of(everything)
    of_dropped = lake.read("messages").join(messages.drops_of(new), list(_TOPIC), "left_semi").select(*KEY)
    keys = new.select(*KEY).unionByName(of_dropped).distinct()
    history = everything.join(keys, list(KEY), "left_semi")
    rows = messages.from_events(history)
    replaced = _partitions_with(lake.read("messages"), keys, "messages")
    stay = lake.read("messages", replaced).join(keys, list(KEY), "left_anti")
    columns = [*TABLES["messages"].columns, *TABLES["messages"].partitioned_by]
    releases_replaced = _partitions_with(lake.read("releases"), keys, "releases")
    releases_stay = lake.read("releases", releases_replaced).join(keys, list(KEY), "left_anti")
    return _Change(
        touched=touched_by(history),
        messages=messages.fold(rows, drops).select(*columns).unionByName(stay.select(*columns)),
        messages_replaced=replaced,
        releases=given_back(rows).unionByName(releases_stay),
        releases_replaced=releases_replaced,
    )


def _partitions_with(rows: DataFrame, keys: DataFrame, table: str, *, by: Sequence[str] = KEY) -> list[str]:
    """The partitions of a table in which any of the keys is."""
    names = TABLES[table].partitioned_by
    found = rows.join(keys, list(by), "left_semi").select(*names).distinct().collect()
    return sorted("/".join(f"{name}={row[name]}" for name in names) for row in found)


def _facts(lake: Lake, after: Commit, minutes: Mapping[str, tuple[int, int]]) -> DataFrame:
    """The facts of the touched days: the touched minutes counted anew, the others as they were."""
    days = [f"day={day}" for day in minutes]
    done = [f"state={messages.DONE}/{day}" for day in days]
    events = lake.read("events", days, commit=after)
    handed = hand_overs(lake.read("messages", done, commit=after), lake.read("releases", days, commit=after))
    counted = facts(events.where(within(minutes, events["at_ms"])), handed.where(within(minutes, handed_ms())))
    before = lake.read("facts", days)
    stay = before.where(~within(minutes, before["minute_ms"]))
    columns = [*TABLES["facts"].columns, *TABLES["facts"].partitioned_by]
    return counted.select(*columns).unionByName(stay.select(*columns))
