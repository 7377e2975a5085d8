"""Runs that are parsed with vectors equal those of the protocol's own parser."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1 import records_pb2 as records
from pyspark_dejaq import runs, wire

# Lengths whose bytes also occur between ids, and the longest length.
LENGTHS = st.sampled_from((1, 2, 34, 42, 64))
IDS = st.builds(lambda length, letter: letter * length, LENGTHS, st.sampled_from("aZ0._:-"))
ROWS = st.lists(st.tuples(IDS, st.integers(0, 2**62), st.binary(max_size=300)), min_size=1, max_size=20)


def run_of(
    rows: list[tuple[str, int, bytes]], *, width: int | None = None, priorities: bool = False, merged: bool = False
) -> bytes:
    """A run as it is stored; merged runs have their ids behind their times."""
    run = records.Run(owner="group", ts=[row[1] for row in rows])
    begun = bytes(run.SerializeToString()) if merged else b""
    run = records.Run(ids=[row[0] for row in rows]) if merged else run
    if not merged:
        run.ids.extend(row[0] for row in rows)
    run.bodies.extend([row[2] if width is None else row[2][:1] * width for row in rows])
    if priorities:
        run.priorities.extend(range(len(rows)))
    return begun + bytes(run.SerializeToString())


@given(
    st.lists(ROWS, min_size=1, max_size=4), st.sampled_from((None, 0, 1, 127, 128, 300)), st.booleans(), st.booleans()
)
def test_vectors_and_parser_agree(
    all_rows: list[list[tuple[str, int, bytes]]], width: int, priorities: bool, merged: bool
) -> None:
    packed = [
        run_of([(i, t, b or b"x") for i, t, b in rows], width=width, priorities=priorities, merged=merged)
        for rows in all_rows
    ]
    scan = carrier.ScanColumns(runs=packed, run_buckets=range(len(packed)), run_rows=[b""] * len(packed))
    quick, careful = runs._quickly(scan), runs._carefully(scan)
    assert quick is not None
    assert quick.ids.equals(careful.ids)
    assert quick.ts.tolist() == careful.ts.tolist()
    assert quick.counts.tolist() == careful.counts.tolist()
    bodies = [body for run in careful.rest for body in run.bodies]
    found = quick.bodies[0].to_pylist() if quick.bodies is not None else [b for run in quick.rest for b in run.bodies]
    assert found == bodies
    if width is not None and not priorities:
        assert quick.bodies is not None


@pytest.mark.parametrize(
    "packed",
    [
        records.Run(owner="g", ids=["a*b"], ts=[1]).SerializeToString(),
        records.Run(owner="g", ids=['a"b'], ts=[1]).SerializeToString(),
        records.Run(owner="g", ids=["i" * 200], ts=[1]).SerializeToString(),
        records.Run(owner="g", ids=["a", "b"], ts=[1]).SerializeToString(),
    ],
)
def test_unexpected_input_is_left_to_the_parser(packed: bytes) -> None:
    cut = wire.cut(packed)
    found = None if cut is None else wire.ids_of([cut])
    assert found is None or found.to_pylist() == records.Run.FromString(packed).ids
    assert wire.cut_all([packed]) == (None if cut is None else [cut])


def test_no_runs_have_no_rows() -> None:
    assert runs.run_batch(carrier.ScanColumns(), "t", 0).num_rows == 0
    assert isinstance(runs.run_batch(carrier.ScanColumns(), "t", 0), pa.RecordBatch)
