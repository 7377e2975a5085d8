"""A block of bodies has the same bytes that protobuf itself would write, in every message that contains one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dejaq.domain.batch import LeaseSet
from dejaq.domain.bodies.body_block import BodyBlock, BodySlices, body_bytes
from dejaq.protocol.spliced import create_frame, push_frame, serialized, whole
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1 import records_pb2 as records

# Sizes around those at which the length needs one more byte; of one size or of several.
sizes = st.sampled_from([0, 1, 100, 127, 128, 1_000, 16_383, 16_384])
body_lists = st.one_of(
    st.lists(sizes, max_size=6),
    st.builds(lambda size, count: [size] * count, sizes, st.integers(0, 6)),
    st.builds(lambda size, count: [size] * count, st.sampled_from([0, 1, 128]), st.integers(60, 140)),
).map(lambda counts: [bytes([65 + row]) * count for row, count in enumerate(counts)])


@given(body_lists)
def test_a_block_equals_the_body_column_of_a_run(bodies: list[bytes]) -> None:
    block = BodyBlock(bodies)
    assert block.data == records.Run(bodies=bodies).SerializeToString()
    assert list(block) == bodies
    assert block.sizes == [len(body) for body in bodies]


@given(body_lists, st.data())
def test_a_slice_of_a_block_equals_the_column_of_its_rows(bodies: list[bytes], data: st.DataObject) -> None:
    block = BodyBlock(bodies)
    start = data.draw(st.integers(0, len(bodies)))
    end = data.draw(st.integers(start, len(bodies)))
    assert block[start:end] == bodies[start:end]
    if end > start:
        assert block.cut(start, end) == carrier.Push(bodies=bodies[start:end]).SerializeToString()
        assert block[end - 1] == bodies[end - 1]


@given(body_lists.filter(bool), body_lists.filter(bool))
def test_joined_slices_have_the_bodies_of_all_their_rows(one: list[bytes], other: list[bytes]) -> None:
    slices = BodySlices([(BodyBlock(one), 0, len(one)), (BodyBlock(other), 1, len(other))][: 1 + (len(other) > 1)])
    expected = one + other[1:]
    assert slices == expected
    assert (len(slices), slices[0], slices[-1]) == (len(expected), expected[0], expected[-1])
    assert body_bytes(slices) == carrier.Push(bodies=expected).ByteSize()
    assert slices != [*expected, b""]


@given(body_lists.filter(bool))
def test_a_frame_with_separate_bodies_is_the_same_frame(bodies: list[bytes]) -> None:
    create = carrier.ClientFrame(request=7, create=carrier.CreateBatch(sequence=3, ts=[1] * len(bodies), bucket=2))
    sent = create_frame(create, bodies)
    assert sent.request == 7
    expected = carrier.ClientFrame()
    expected.CopyFrom(create)
    expected.create.bodies.extend(bodies)
    assert whole(sent) == carrier.ClientFrame.FromString(serialized(sent)) == expected
    push = carrier.BrokerFrame(push=carrier.Push(lease=9, ts=[1] * len(bodies), large=True))
    lease = LeaseSet(1, "c", 2, spans=[], ts=[], bodies=BodySlices([(BodyBlock(bodies), 0, len(bodies))]))
    pushed = push_frame(push, lease)
    expected_frame = carrier.BrokerFrame()
    expected_frame.CopyFrom(push)
    expected_frame.push.bodies.extend(bodies)
    assert whole(pushed) == expected_frame
    assert whole(expected_frame) is expected_frame


def test_bodies_outside_a_block_are_counted_one_by_one() -> None:
    assert body_bytes([b"abc", b""]) == 3
