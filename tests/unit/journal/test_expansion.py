"""Expanding a record by columns returns the same events as reading them one by one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dejaq.journal.expansion import Expansion
from dejaq.journal.schema import KINDS, OF_CALLERS, SCHEMA
from dejaq.protocol.v1 import journal_pb2 as journal
from dejaq.testing.model.replay import ReplayedEvent, events_of
from tests.unit.journal.records import PREFIX

I64 = st.integers(-(2**62), 2**62)


@st.composite
def groups(draw: st.DrawFn) -> journal.Events:
    """Any group of events that a store may write."""
    kind: Any = draw(st.sampled_from(sorted(KINDS)))
    group = journal.Events(
        kind=kind,
        topic=draw(st.sampled_from(["mail", "töpfe"])),
        actor=draw(st.sampled_from(["", "worker-1", "billing"])),
        lease=draw(st.integers(0, 2**62)),
        expires=draw(st.sampled_from([0, 1_700_000_000_000])),
    )
    count, listed = 0, list[str]()
    for size, generated in draw(st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=1, max_size=3)):
        if generated:
            group.spans.add(count=size, prefix=PREFIX, first=draw(st.integers(0, 2**32 - 8)))
        else:
            group.spans.add(count=size)
            listed += draw(st.lists(st.text("abc.:-", min_size=1), min_size=size, max_size=size))
        count += size
    if draw(st.booleans()):
        group.ids.extend(listed)
    else:
        group.joined = "\n".join(listed)
    columns = {
        "ts": I64,
        "priorities": st.integers(-(2**31), 2**31 - 1),
        "attempts": st.integers(1, 2**31 - 1),
        "body_bytes": st.integers(0, 2**20),
        "body_crcs": st.integers(0, 2**32 - 1),
        "handed_us": I64,
    }
    for name, values in columns.items():
        given_count = draw(st.sampled_from([0, 1, count]))
        getattr(group, name).extend(draw(st.lists(values, min_size=given_count, max_size=given_count)))
    return group


def row_of(event: ReplayedEvent) -> dict[str, Any]:
    """An event as a row of a segment."""
    priority = 0 if event.priority is None and event.kind == "created" else event.priority
    attempts = 1 if event.attempts is None and event.kind == "leased" else event.attempts
    return {
        "origin": "here",
        "sequence": event.sequence,
        "at_ms": event.at_ms,
        "kind": event.kind,
        "topic": event.topic,
        "id": event.id,
        "actor": event.actor,
        "lease": event.lease,
        "expires_ms": event.expires,
        "ts_ms": event.ts,
        "priority": priority,
        "attempts": attempts,
        "body_bytes": event.body_bytes,
        "body_crc": event.body_crc,
        "handed_us": event.handed_us,
    }


@settings(deadline=None)
@given(st.lists(st.lists(groups(), min_size=1, max_size=3), min_size=1, max_size=4))
def test_columns_have_the_events_of_the_records(records: list[list[journal.Events]]) -> None:
    expansion = Expansion("here", rows=4)
    expected: list[dict[str, Any]] = []
    for number, events in enumerate(records, start=1):
        caller = "" if number % 2 else f"user:corp/{number}"
        record = journal.JournalRecord(
            sequence=number, at_ms=1_700_000_000_000 + number, events=events, principal=caller
        )
        assert expansion.add(record.SerializeToString()) == number
        rows = [row_of(event) for event in events_of(record)]
        expected += [{**row, "row": place, "principal": caller} for place, row in enumerate(rows)]
    assert expansion.rows == len(expected)
    batch = expansion.take()
    names = [*SCHEMA.names, *OF_CALLERS.names]
    assert batch.schema.names == names
    assert batch.to_pylist() == [{name: row[name] for name in names} for row in expected]
    assert expansion.rows == 0


def test_records_of_a_shared_store_contain_its_name_and_their_tickets() -> None:
    expansion = Expansion("here", rows=4, store="shop")
    for sequence, ticket in ((1, 7), (2, 9)):
        record = journal.JournalRecord(sequence=sequence, ticket=ticket)
        record.events.add(kind=journal.EVENT_CREATED, ids=["a", "b"]).spans.add(count=2)
        expansion.add(record.SerializeToString())
    batch = expansion.take()
    assert batch["store"].to_pylist() == ["shop"] * 4
    assert batch["ticket"].to_pylist() == [7, 7, 9, 9]


def test_a_column_of_a_wrong_length_is_refused() -> None:
    record = journal.JournalRecord(sequence=1)
    events = record.events.add(kind=journal.EVENT_CREATED)
    events.spans.add(count=3, prefix=PREFIX)
    events.ts.extend([1, 2])
    expansion = Expansion("here", rows=4)
    with pytest.raises(ValueError, match="shape"):
        expansion.add(record.SerializeToString())


def test_ids_outside_the_spans_are_refused() -> None:
    record = journal.JournalRecord(sequence=1)
    events = record.events.add(kind=journal.EVENT_CREATED, ids=["a", "b"])
    events.spans.add(count=1)
    with pytest.raises(ValueError, match="2 ids for spans of 1"):
        Expansion("here", rows=4).add(record.SerializeToString())


def test_an_unknown_kind_is_refused() -> None:
    record = journal.JournalRecord(sequence=1)
    record.events.add(kind=journal.EVENT_CREATED).spans.add(count=1, prefix=PREFIX)
    packed = record.SerializeToString().replace(b"\x08\x01\x32", b"\x08\x63\x32")
    with pytest.raises(KeyError):
        Expansion("here", rows=4).add(packed)
