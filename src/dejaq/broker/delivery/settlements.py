"""Reads the settlements that clients send, and refuses those that no storage may take."""

from __future__ import annotations

from dejaq import limits
from dejaq.domain.batch import RowRange
from dejaq.domain.changes import Delete
from dejaq.domain.topic import Topic
from dejaq.domain.transitions import check_ts
from dejaq.errors import Code, InvalidArgument, error_of
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
    if not 1 <= len(proto.settles) <= limits.DELETES_MAX:
        raise InvalidArgument(f"deletes from {len(proto.settles)} leases in one frame; 1 to {limits.DELETES_MAX} fit")
    deletes: list[Delete] = []
    for settle in proto.settles:
        ranges = rows_of(settle)
        if settle.kind != carrier.DELETE or ranges is None:
            raise InvalidArgument("several settlements in one frame are deletes of rows that they name")
        deletes.append(Delete(topic, settle.lease, consumer, ranges, handed_times(settle, ranges)))
    return deletes
