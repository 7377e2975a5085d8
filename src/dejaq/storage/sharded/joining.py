"""Joins the answers of several shards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from dejaq.domain.batch import LeaseSet, Outcomes, RowRange
from dejaq.domain.changes import ByConsumer, Delete, Extend, Recall, Reject, Release
from dejaq.errors import Code
from dejaq.storage.postgres.keys import MARK, spans_of


@dataclass(frozen=True, slots=True)
class Asked:
    """The rows of a lease in a request to one shard; `places` are their places among all requested
    rows, None for all.
    """

    rows: Sequence[RowRange] | None
    places: Sequence[int] | None = None

    @classmethod
    def part(cls, rows: Sequence[RowRange], own: RowRange) -> Asked | None:
        """The part of the rows that one shard has; None when it has none of them."""
        cut: list[RowRange] = []
        places: list[int] = []
        passed = 0
        for start, end in rows:
            low, high = max(start, own[0]), min(end, own[1])
            if low < high:
                cut.append((low, high))
                places += range(passed + low - start, passed + high - start)
            passed += end - start
        return cls(cut, places) if cut else None

    def numbers(self, count: int) -> Iterable[int]:
        """The numbers of the rows, when the lease has so many rows."""
        ranges = [(0, count)] if self.rows is None else self.rows
        return (row for start, end in ranges for row in range(start, end))

    def of(self, column: Sequence[int]) -> Sequence[int]:
        """The values of a column for these rows; the column has one value for all or one per row."""
        if self.places is None or len(column) <= 1:
            return column
        return [column[place] for place in self.places if place < len(column)]


def part_of(change: ByConsumer, asked: Asked) -> ByConsumer:
    """The part of a consumer's change that is sent to one shard."""
    match change:
        case Extend() | Recall():
            return replace(change, rows=asked.rows)
        case Release():
            ts = change.ts if isinstance(change.ts, int) else asked.of(change.ts)
            return replace(change, rows=asked.rows, ts=ts, handed_us=asked.of(change.handed_us))
        case Delete() | Reject():
            return replace(change, rows=asked.rows, handed_us=asked.of(change.handed_us))


def settled(answers: Sequence[tuple[Asked, Outcomes]], rows: Sequence[RowRange] | None, otherwise: Code) -> Outcomes:
    """The outcomes of rows of one lease: a row is on one shard, and is lost on the others."""
    count = max((answer.count for _, answer in answers), default=0)
    done: set[int] = set()
    for asked, answer in answers:
        done.update(row for row in asked.numbers(answer.count) if row not in answer.codes)
    outcomes = Outcomes(count)
    for row in Asked(rows).numbers(count):
        if row not in done:
            outcomes.codes[row] = otherwise
    return outcomes


def by_expiry(lists: Iterable[Sequence[LeaseSet]]) -> list[LeaseSet]:
    """The lease sets of all shards; rows of one lease that end together form one set."""
    sets = sorted((one for some in lists for one in some), key=lambda one: (one.lease_id, one.expires))
    return [
        merged(list(group), by_priority=False)
        for _, group in groupby(sets, key=lambda one: (one.lease_id, one.expires))
    ]


def merged(sets: Sequence[LeaseSet], *, by_priority: bool) -> LeaseSet:
    """The rows of several parts of one lease, in their order."""
    dead = sum(one.dead_lettered for one in sets)
    full = [one for one in sets if len(one)]
    if len(full) <= 1:
        return replace(full[0] if full else sets[0], dead_lettered=dead)
    rows: list[tuple[int, int, str, int, bytes, int, bytes]] = []
    for one in full:
        count = len(one)
        keys = [key if span.ids is not None else key + MARK for span in one.spans for key in span.expand()]
        rows += zip(
            one.ts,
            one.priorities or [0] * count,
            keys,
            one.rows or range(count),
            one.bodies,
            one.attempts or [1] * count,
            one.headers or [b""] * count,
            strict=True,
        )
    rows.sort(key=(lambda row: (row[1], row[0], row[2])) if by_priority else (lambda row: row[:3]))
    ts, priorities, keys, numbers, bodies, attempts, headers = (list(column) for column in zip(*rows, strict=True))
    return replace(
        full[0],
        spans=spans_of(keys),
        ts=ts,
        bodies=bodies,
        attempts=attempts if any(count != 1 for count in attempts) else None,
        priorities=priorities if any(priorities) else None,
        headers=headers if any(headers) else None,
        rows=numbers,
        dead_lettered=dead,
        large=any(one.large for one in full),
    )


def quotas(
    peeks: dict[int, list[tuple[int, int, int]]], *, rows_max: int, bytes_max: int, by_priority: bool
) -> dict[int, int]:
    """How many rows each shard gives, so that together they are the first ones, in the order of their first rows."""
    order = (1, 0) if by_priority else (0, 1)
    heads = sorted(
        (peek[order[0]], peek[order[1]], place, number, peek[2])
        for place, some in peeks.items()
        for number, peek in enumerate(some)
    )
    shares: dict[int, int] = {}
    size = 0
    for _, _, place, _, row_size in heads[:rows_max]:
        size += row_size
        if size > bytes_max and shares:
            break
        shares[place] = shares.get(place, 0) + 1
    return shares
