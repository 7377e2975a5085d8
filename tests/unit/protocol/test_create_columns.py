"""A create whose columns stay bytes says what protobuf reads in its frame; any other frame is read by protobuf."""

from __future__ import annotations

import random
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from dejaq.domain.id_column import IdColumn
from dejaq.domain.ids import ProducerSession, are_valid_cells, valid_ids
from dejaq.protocol.columns import create_from_proto
from dejaq.protocol.create_columns import read_create
from dejaq.protocol.spliced import create_frame, serialized
from dejaq.protocol.v1 import carrier_pb2 as carrier

SESSION = ProducerSession(1, 2)
sizes = st.sampled_from([0, 1, 100, 127, 128, 1_000])
body_lists = st.integers(1, 70).flatmap(
    lambda count: st.lists(sizes, min_size=count, max_size=count) | st.builds(lambda size: [size] * count, sizes)
)


def frame_of(bodies: list[bytes], ids: list[str], /, **fields: Any) -> bytes:
    create = carrier.CreateBatch(session=SESSION.pack(), sequence=300, ts=range(7, 7 + len(ids)), check=2**63, **fields)
    return serialized(create_frame(carrier.ClientFrame(request=1 << 40, create=create), bodies, ids))


def assert_same(data: bytes | memoryview) -> bool:
    """Whether the columns stay bytes; then they are those that protobuf finds."""
    found = read_create(data)
    if found is None:
        return False
    expected = carrier.ClientFrame.FromString(bytes(data))
    frame, columns = found
    assert (list(columns.ids), list(columns.bodies)) == (list(expected.create.ids), list(expected.create.bodies))
    batches = [
        create_from_proto(one.create, owner="o", now=5, session=SESSION, columns=part)
        for one, part in ((frame, columns), (expected, None))
    ]
    assert list(batches[0].ts) == list(batches[1].ts)
    assert columns.ids.text == "\n".join(expected.create.ids)
    assert IdColumn(list(columns.ids)).wire == columns.ids.wire
    assert valid_ids(columns.ids)
    assert columns.ids.lengths == {len(expected.create.ids[0])}
    expected.create.ClearField("ids")
    expected.create.ClearField("bodies")
    assert frame == expected
    return True


@given(body_lists, st.sampled_from([1, 16, 45, 48, 58, 64]), st.booleans(), st.booleans())
def test_columns_are_those_of_the_frame(counts: list[int], length: int, relative: bool, viewed: bool) -> None:
    bodies = [bytes([row]) * size for row, size in enumerate(counts)]
    ids = [f"{row:02}" * 32 for row in range(len(counts))]
    ids = [one[:length] for one in ids]
    data = frame_of(bodies, ids, relative=relative, priorities=[3] * len(ids), relative_rows=[0, 1])
    assert assert_same(memoryview(bytearray(data)) if viewed else data)


@pytest.mark.parametrize(
    ("ids", "bodies", "fields"),
    [
        (["a", "bc"], 2, {}),
        (["a", "b"], 1, {}),
        (["a", "b"], 3, {}),
        (["a", "\u00e4"], 2, {}),
        (["a", '"'], 2, {}),
        (["a", "\n"], 2, {}),
        (["a" * 65] * 2, 2, {}),
        ([], 2, {}),
        (["a", "b"], 2, {"large": True}),
        (["a", "b"], 2, {"digests": [b"", b""]}),
        (["a", "b"], 2, {"ids": ["c"]}),
        (["a", "b"], 2, {"bodies": [b"c"]}),
    ],
)
def test_other_frames_are_read_as_a_whole(ids: list[str], bodies: int, fields: dict[str, Any]) -> None:
    assert read_create(frame_of([b"body"] * bodies, ids, **fields)) is None


def test_a_frame_with_another_command_or_more_fields_is_read_as_a_whole() -> None:
    data = frame_of([b"body"] * 2, ["a", "b"])
    other = carrier.ClientFrame(ping=carrier.Ping(client_us=1)).SerializeToString()
    more = carrier.ClientFrame(create=carrier.CreateBatch(bodies=[b"more"])).SerializeToString()
    assert [read_create(one) for one in (other, other + data, data + other, data + more, b"", data[:9])] == [None] * 6


@pytest.mark.parametrize("size", [3, 40])
def test_a_damaged_frame_is_never_read_differently(size: int) -> None:
    """Where both read it, both read the same; where protobuf cannot, nor do the columns say anything."""
    chance, read = random.Random(size), 0
    for _ in range(3_000):
        equal = chance.random() < 0.5
        bodies = [bytes(2 if equal else chance.randrange(4)) for _ in range(size)]
        data = bytearray(frame_of(bodies, [f"i{row:02}" for row in range(size)]))
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.choice((0, 1, 2, 3, 0x22, 0x2A, 0x32, 0x7F, 0x80, 0xFF))
        try:
            carrier.ClientFrame.FromString(bytes(data))
        except DecodeError:
            assert read_create(bytes(data)) is None
        else:
            read += assert_same(bytes(data))
    assert read > 100


def test_cells_are_valid_when_each_id_is() -> None:
    """G8: ids are checked whatever form they arrive in; each character is tried at each place."""
    for place in range(3):
        for character in map(chr, range(128)):
            ids = ["aaa", "bbb"]
            ids[1] = ids[1][:place] + character + ids[1][place + 1 :]
            wire = carrier.CreateBatch(ids=ids).SerializeToString()
            assert are_valid_cells(wire, 2) is valid_ids(ids)
