"""Runs that are parsed with vectors equal those of the protocol's own parser."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1 import records_pb2 as records
from pyspark_dejaq import runs, wire

# Lengths whose bytes also occur between ids, and the longest length.
LENGTHS = st.sampled_from((1, 2, 34, 42, 64))
IDS = st.builds(lambda length, letter: letter * length, LENGTHS, st.sampled_from("aZ0._:-"))
ROWS = st.lists(st.tuples(IDS, st.integers(0, 2**62), st.binary(max_size=300)), min_size=1, max_size=40)

FORMS = st.sampled_from(("behind", "merged"))
# If all ids had the length of the first one, a body would begin where they end. And so it does.
LOOKS_ALIKE = [
    (letters, 0, body)
    for letters, body in zip(
        ("a" * 34, "a" * 42, "aa", "a" * 42, "a" * 64, "a"),
        (b"\0" * 3, b"\0" * 5, b"x", b"\0\0", b"x", b"x"),
        strict=True,
    )
]


def run_of(
    rows: list[tuple[str, int, bytes]],
    *,
    width: int | None = None,
    priorities: bool = False,
    behind: bool = False,
    merged: bool = False,
) -> bytes:
    """A run as it is stored: its ids may be behind its times, and behind the versions of a merged run."""
    run = records.Run(owner="group", ts=[row[1] for row in rows], versions=range(len(rows)) if merged else ())
    behind = behind or merged
    begun = bytes(run.SerializeToString()) if behind else b""
    run = records.Run(ids=[row[0] for row in rows]) if behind else run
    if not behind:
        run.ids.extend(row[0] for row in rows)
    run.bodies.extend([row[2] if width is None else row[2][:1] * width for row in rows])
    if priorities:
        run.priorities.extend(range(len(rows)))
    return begun + bytes(run.SerializeToString())


@given(
    st.lists(ROWS, min_size=1, max_size=4), st.sampled_from((None, 0, 1, 127, 128, 300)), st.booleans(), st.sets(FORMS)
)
@example([[("a", 0, b"")], LOOKS_ALIKE], None, False, {"behind"})
def test_vectors_and_parser_agree(
    all_rows: list[list[tuple[str, int, bytes]]], width: int | None, priorities: bool, forms: set[str]
) -> None:
    form = dict.fromkeys(forms, True)
    packed = [
        run_of([(i, t, b or b"x") for i, t, b in rows], width=width, priorities=priorities, **form) for rows in all_rows
    ]
    buckets = range(len(packed))
    quick, careful = runs._quickly(packed, buckets), runs._carefully(packed, buckets)
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
    assert runs.run_batch(carrier.ScanColumns(), runs.WantedBatches("t", 4, 0)).num_rows == 0
    assert isinstance(runs.run_batch(carrier.ScanColumns(), runs.WantedBatches("t", 4, 0)), pa.RecordBatch)
