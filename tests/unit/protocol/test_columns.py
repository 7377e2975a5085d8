"""Batches are sent as columns, and invalid columns are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dejaq.domain.batch import IdSpan, LeaseSet, Outcomes, ranges_of_rows
from dejaq.domain.message import Message
from dejaq.domain.topic import Durability, TopicSettings
from dejaq.errors import Code, DejaqError
from dejaq.protocol import columns
from dejaq.protocol.v1 import carrier_pb2, errors_pb2, overseer_pb2

SESSION = bytes(range(10))


def test_a_create_keeps_its_columns() -> None:
    proto = carrier_pb2.CreateBatch(
        session=SESSION,
        sequence=7,
        bucket=3,
        ids=["a", "b"],
        ts=[1, 2],
        bodies=[b"x", b"y"],
        priorities=[-1, 1],
    )
    batch = columns.create_from_proto(proto, owner="me", now=100, session=columns.session_from_proto(proto.session))
    assert (batch.owner, batch.session.pack(), batch.sequence, batch.bucket) == ("me", SESSION, 7, 3)
    assert (batch.ids, batch.ts, batch.bodies, batch.priorities) == (
        ["a", "b"],
        [1, 2],
        [b"x", b"y"],
        [-1, 1],
    )
    assert batch.headers is None


def test_delays_count_from_now() -> None:
    proto = carrier_pb2.CreateBatch(session=SESSION, ts=[0, 5], bodies=[b"", b""], relative=True)
    batch = columns.create_from_proto(proto, owner="me", now=100, session=columns.session_from_proto(proto.session))
    assert (batch.ts, batch.ids) == ([100, 105], None)


@pytest.mark.parametrize("session", [b"", b"123456789", b"12345678901"])
def test_a_producer_session_is_ten_bytes(session: bytes) -> None:
    with pytest.raises(DejaqError) as caught:
        columns.session_from_proto(session)
    assert caught.value.code is Code.INVALID_ARGUMENT


spans = st.one_of(
    st.lists(st.text("abc", min_size=1), min_size=1, max_size=4).map(lambda ids: IdSpan(len(ids), ids=ids)),
    st.tuples(st.integers(1, 4), st.integers(0, 2**32 - 9)).map(
        lambda pair: IdSpan(pair[0], prefix="f" * 24, first=pair[1])
    ),
)


@given(spans=st.lists(spans, min_size=1, max_size=5), rich=st.booleans())
def test_a_lease_set_is_parsed_as_it_was_written(spans: list[IdSpan], rich: bool) -> None:
    count = sum(span.count for span in spans)
    lease = LeaseSet(
        lease_id=2**63,
        consumer="c",
        expires=5,
        spans=spans,
        ts=list(range(count)),
        bodies=[bytes([n]) for n in range(count)],
        attempts=[2] * count if rich else None,
        priorities=[-1] * count if rich else None,
        headers=[b"h"] * count if rich else None,
        rows=list(range(1, count + 1)) if rich else None,
    )
    push = carrier_pb2.Push()
    columns.write_push(push, lease)
    back = columns.lease_from_proto(carrier_pb2.Push.FromString(push.SerializeToString()), consumer="c")
    assert back.ids() == lease.ids()
    for name in ("lease_id", "expires", "ts", "bodies", "attempts", "priorities", "headers", "rows"):
        assert getattr(back, name) == getattr(lease, name), name


def test_outcomes_contain_only_items_that_are_not_ok() -> None:
    proto = errors_pb2.Outcomes()
    columns.write_outcomes(proto, Outcomes(5, {3: Code.LEASED, 1: Code.ALREADY_EXISTS}))
    assert list(proto.rows) == [1, 3]
    back = columns.outcomes_from_proto(proto, count=5)
    assert [back[row] for row in range(5)] == [Code.OK, Code.ALREADY_EXISTS, Code.OK, Code.LEASED, Code.OK]


@given(rows=st.lists(st.integers(0, 60)))
def test_rows_become_ranges_and_ranges_become_the_same_rows(rows: list[int]) -> None:
    ranges = ranges_of_rows(rows)
    assert [row for start, end in ranges for row in range(start, end)] == sorted(set(rows))
    flat = [bound for pair in ranges for bound in pair]
    assert columns.ranges_from_proto(flat) == (ranges or None)


@pytest.mark.parametrize("ranges", [[1], [1, 1], [2, 1], [0, 2, 1, 3], [4, 5, 0, 1]])
def test_invalid_ranges_are_refused(ranges: list[int]) -> None:
    with pytest.raises(DejaqError) as caught:
        columns.ranges_from_proto(ranges)
    assert caught.value.code is Code.INVALID_ARGUMENT


def test_messages_are_parsed_as_they_were_written() -> None:
    messages = [
        Message("a", "mail", 3, 50, -1, b"x", "me", "", 9, 0, {"k": "v"}),
        Message("b", "mail", 1, 150, 2, b"", "you", "worker", 2**63, 4, {}),
    ]
    proto = columns.messages_to_proto(messages, now=100, asked=[4, 6], cursor=b"next")
    assert list(proto.statuses) == ["available", "processing"]
    assert (list(proto.asked), proto.cursor) == ([4, 6], b"next")
    assert columns.messages_from_proto(proto, topic="mail") == messages


def test_settings_are_parsed_as_they_were_written_and_missing_ones_are_defaults() -> None:
    settings = TopicSettings(buckets=7, max_body_bytes=0, durability=Durability.RELAXED)
    assert columns.settings_from_proto(columns.settings_to_proto(settings)) == settings
    assert columns.settings_from_proto(overseer_pb2.TopicSettings()) == TopicSettings()
