"""Reads the settlements that clients send, and refuses those that no storage may take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dejaq import limits
from dejaq.domain.batch import Outcomes, RowRange
from dejaq.domain.changes import Delete, Extend
from dejaq.domain.topic import Topic
from dejaq.domain.transitions import check_lease, check_ts
from dejaq.errors import Code, InvalidArgument, Refused, error_of
from dejaq.protocol.columns import ranges_from_proto, release_times_from_proto
from dejaq.protocol.v1 import carrier_pb2 as carrier


def rows_of(proto: carrier.Settle) -> list[RowRange] | None:
    """The rows that a settlement names, or None for all; raises for rows that no lease has."""
    ranges = ranges_from_proto(proto.ranges)
    if ranges is not None and ranges[-1][1] > limits.LEASE_ROWS_MAX:
        raise InvalidArgument(f"row {ranges[-1][1] - 1} is in no lease; one has {limits.LEASE_ROWS_MAX} at most")
    return ranges


def release_times(topic: Topic, proto: carrier.Settle, ranges: list[RowRange] | None, now: int) -> int | list[int]:
    """The times of a release: one, or one a row; raises when one is not allowed."""
    times = release_times_from_proto(proto, now=now)
    listed = [times] if isinstance(times, int) else times
    rows = None if ranges is None else sum(end - start for start, end in ranges)
    if rows is not None and len(listed) not in (1, rows):
        raise InvalidArgument(f"{len(listed)} times for {rows} rows")
    for value in listed:
        code = check_ts(value, now=now, max_future_ms=topic.settings.max_future_ms)
        if code is not Code.OK:
            raise error_of(code, details=f"release to {value}")
    return times


def handed_times(proto: carrier.Settle, ranges: list[RowRange] | None) -> list[int]:
    """When user code got the rows: for none, for all, or for each of them."""
    times = list(proto.handed_us)
    rows = limits.LEASE_ROWS_MAX if ranges is None else sum(end - start for start, end in ranges)
    if len(times) > rows or (ranges is not None and len(times) not in (0, 1, rows)):
        raise InvalidArgument(f"{len(times)} times of hand-over for {rows} rows")
    return times


def deletes_of(proto: carrier.Deletes, topic: Topic, consumer: str) -> list[Delete]:
    """The deletes of a frame; raises before anything is done when one of them cannot be."""
    return [
        Delete(topic, settle.lease, consumer, ranges, handed_times(settle, ranges))
        for settle, ranges in _named(proto.settles, carrier.DELETE)
    ]


def extends_of(proto: carrier.Extends, topic: Topic, consumer: str, now: int) -> list[Extend]:
    """The extensions of a frame; raises before anything is done when one of them cannot be."""
    return [
        Extend(topic, settle.lease, consumer, ranges, now + checked_lease(topic, settle.lease_ms))
        for settle, ranges in _named(proto.settles, carrier.EXTEND)
    ]


def checked_lease(topic: Topic, lease_ms: int) -> int:
    """The length of a lease, if a lease of this topic may have it."""
    code = check_lease(lease_ms, max_lease_ms=topic.settings.max_lease_ms)
    if code is not Code.OK:
        raise error_of(code)
    return lease_ms


def _named(
    settles: Sequence[carrier.Settle], kind: carrier.SettleKind
) -> Iterator[tuple[carrier.Settle, list[RowRange]]]:
    """Each settlement of a frame with its rows, which it must name."""
    if not 1 <= len(settles) <= limits.SETTLES_MAX:
        raise InvalidArgument(f"changes of {len(settles)} leases in one frame; 1 to {limits.SETTLES_MAX} fit")
    for settle in settles:
        ranges = rows_of(settle)
        if settle.kind != kind or ranges is None:
            raise InvalidArgument("several settlements in one frame are of one kind and name their rows")
        yield settle, ranges


def joined(
    changes: Sequence[Delete | Extend], answers: Sequence[Outcomes | Refused]
) -> tuple[Outcomes, list[Outcomes]]:
    """The outcomes of several changes as one answer, with rows numbered through all of them; and those of each."""
    total, every = Outcomes(0), []
    for change, answer in zip(changes, answers, strict=True):
        ranges = change.rows or ()
        outcomes = answer if isinstance(answer, Outcomes) else Outcomes.of_rows(ranges, answer.code)
        every.append(outcomes)
        rows = [row for start, end in ranges for row in range(start, end)]
        if outcomes.codes:
            places = enumerate(rows, total.count)
            total.codes.update({place: outcomes.codes[row] for place, row in places if row in outcomes.codes})
        total.count += len(rows)
    return total, every
