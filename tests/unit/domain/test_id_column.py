"""A column of ids has the same bytes that protobuf itself would write, in every message that contains one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dejaq.domain.batch import IdSpan, LeaseSet
from dejaq.domain.id_column import IdColumn, joined
from dejaq.protocol.columns import lease_from_proto, write_push
from dejaq.protocol.spliced import create_frame, push_frame, serialized, whole
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1 import records_pb2 as records

# Ids of one length or of several; the longest length needs two bytes, and some characters need several bytes.
names = st.text("ab.:-", max_size=3) | st.sampled_from(
    ["", "x" * 64, "y" * 127, "z" * 200, "\u00e4\u00f6", "abc", "def"]
)
id_lists = st.lists(names, min_size=1, max_size=6) | st.lists(st.sampled_from(["abc", "def", "ghi"]), min_size=1)


@given(id_lists)
def test_a_column_equals_that_of_a_run_and_its_text_has_one_id_per_line(ids: list[str]) -> None:
    column = IdColumn(ids)
    assert column.wire == records.Run(ids=ids).SerializeToString()
    assert column.text.split("\n") == joined(ids).split("\n") == ids
    assert (list(column), column[1:], len(column)) == (ids, ids[1:], len(ids))
    assert column == ids
    assert column != [*ids, "more"]


@given(id_lists)
def test_a_create_with_separate_ids_is_the_same_frame(ids: list[str]) -> None:
    frame = carrier.ClientFrame(request=7, create=carrier.CreateBatch(sequence=3, ts=[1] * len(ids)))
    sent = create_frame(frame, [b"x"] * len(ids), ids)
    expected = carrier.ClientFrame()
    expected.CopyFrom(frame)
    expected.create.ids.extend(ids)
    expected.create.bodies.extend([b"x"] * len(ids))
    assert whole(sent) == carrier.ClientFrame.FromString(serialized(sent)) == expected


@given(st.lists(id_lists, min_size=1, max_size=3), st.booleans(), st.booleans())
def test_a_push_contains_all_ids_in_their_order(stretches: list[list[str]], in_columns: bool, mixed: bool) -> None:
    spans = [IdSpan(len(ids), ids=IdColumn(ids) if in_columns else ids) for ids in stretches]
    spans.insert(len(spans) // 2, IdSpan(2, prefix="0" * 24, first=5))
    if mixed:
        spans.append(IdSpan(1, ids=["last"]))
    count = sum(span.count for span in spans)
    lease = LeaseSet(9, "c", 100, spans=spans, ts=[1] * count, bodies=[b""] * count)
    frame = carrier.BrokerFrame()
    write_push(frame.push, lease)
    back = lease_from_proto(whole(push_frame(frame, lease)).push, consumer="c")
    assert back.ids() == lease.ids()
