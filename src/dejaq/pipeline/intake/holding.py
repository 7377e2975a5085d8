"""Events that wait: those behind which a store may still have others, in segments that later batches will add.

Brokers that share a store number their changes in one sequence, the tickets, and each has a journal of its own. A batch
ends in the middle of all these journals. What it adds to messages ends at one ticket, before which nothing is missing;
the events behind it wait in the table `held` for the next batch. So a batch never finds rows in the lake that end
behind one of its events, and needs no message's earlier events again (`dejaq.pipeline.intake.merging`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from dejaq.pipeline.intake.events import day_of, read_segments
from dejaq.pipeline.intake.segments import Checked, Segment
from dejaq.pipeline.lake.commit import Commit
from dejaq.pipeline.lake.lake import Lake

HELD = "held"
# Of a batch. If more would wait, all of it is added, and what comes before it is looked for then.
_SHARE_MAX = 0.5


@dataclass(frozen=True, slots=True)
class TicketCut:
    """Where a batch ends: by store, the first ticket that waits. Stores that are not named are added whole."""

    tickets: Mapping[str, int]

    def goes_through(self, one: Checked) -> bool:
        """Whether a segment has events that wait."""
        bound = self.tickets.get(one.store)
        return bound is not None and (one.ticket.greatest is None or one.ticket.greatest >= bound)


def cut_before(following: Sequence[Checked], checked: Sequence[Checked]) -> TicketCut:
    """Where a batch ends; `following` has the next segment of each origin."""
    tickets: dict[str, int] = {}
    for one in following:
        if one.ticket.least is not None:
            tickets[one.store] = min(tickets.get(one.store, one.ticket.least), one.ticket.least)
    cut = TicketCut(tickets)
    waiting = sum(one.segment.events for one in checked if cut.goes_through(one))
    return cut if waiting <= _SHARE_MAX * sum(one.segment.events for one in checked) else TicketCut({})


def first_of_origins(segments: Sequence[Segment]) -> list[Segment]:
    """Of each origin its first segment."""
    found: dict[str, Segment] = {}
    for segment in segments:
        before = found.get(segment.origin)
        if before is None or segment.name.first < before.name.first:
            found[segment.origin] = segment
    return list(found.values())


def with_tickets(lake: Lake) -> Commit:
    """The lake's state, knowing the greatest ticket of every store that brokers share, also if it was not recorded."""
    head = lake.head
    unknown = {store for store in head.stores.values() if store not in head.tickets}
    if not unknown:
        return head
    events = lake.read("events").where(F.col("store").isin(*unknown))
    found = events.groupBy("store").agg(F.max("ticket").alias("ticket")).collect()
    return replace(head, tickets={**head.tickets, **{row.store: row.ticket for row in found if row.ticket is not None}})


def is_behind(head: Commit, checked: Sequence[Checked]) -> bool:
    """Whether any of these events may belong before one that is part of a message already."""
    for one in checked:
        if not [origin for origin in head.origins_of(one.store) if origin != one.segment.origin]:
            continue
        added = head.held_from.get(one.store, head.tickets.get(one.store, 0) + 1)
        if one.ticket.least is None or one.ticket.least < added:
            return True
    return False


def divided(lake: Lake, checked: Sequence[Checked], cut: TicketCut) -> tuple[DataFrame, DataFrame | None]:
    """The events to be added to messages now, those that waited among them; and those that wait, if any."""
    whole = [one.segment for one in checked if not cut.goes_through(one)]
    mixed = [one.segment for one in checked if cut.goes_through(one)]
    parts = [lake.read(HELD).withColumn("day", day_of(F.col("at_ms")))] if lake.head.files(HELD) else []
    if mixed:
        parts.append(read_segments(lake.spark, mixed))
    now = [read_segments(lake.spark, whole)] if whole else []
    if not parts:
        return now[0], None
    both = reduce(DataFrame.unionByName, parts)
    if not mixed:
        return reduce(DataFrame.unionByName, [*now, both]), None
    bounds = [(F.col("store") == store) & (F.col("ticket") >= ticket) for store, ticket in cut.tickets.items()]
    waits = reduce(or_, bounds)
    return reduce(DataFrame.unionByName, [*now, both.where(~waits)]), both.where(waits)


def tickets_after(head: Commit, checked: Sequence[Checked]) -> dict[str, int]:
    """By store, the greatest ticket in the lake after a batch, where the segments say it."""
    tickets = dict(head.tickets)
    for one in checked:
        if one.ticket.greatest is not None:
            tickets[one.store] = max(tickets.get(one.store, 0), one.ticket.greatest)
    for one in checked:
        if not one.ticket.known:
            tickets.pop(one.store, None)
    return tickets
