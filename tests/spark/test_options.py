"""The options of format `dejaq`, and its rows, without a query."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from dejaq import limits
from dejaq.domain.bodies import MARK, opened
from dejaq.domain.headers import decode_headers
from pyspark_dejaq.options import OptionError, Options
from pyspark_dejaq.rows import BadRow, pieces, rows_of


def test_offsets_are_names_or_sequences() -> None:
    assert Options.parse({}).starting_offsets == "earliest"
    assert Options.parse({"startingoffsets": "latest"}).starting_offsets == "latest"
    assert Options.parse({"startingoffsets": '{"store-1": 17}'}).starting_offsets == {"store-1": 17}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"startingoffsets": "soon"}, "startingOffsets='soon' is not earliest, latest or"),
        ({"startingoffsets": '["a"]'}, "is not earliest, latest or"),
        ({"minpartitions": "0"}, "minPartitions='0' is not a whole number from 1"),
        ({"includebody": "maybe"}, "includeBody='maybe' is not true or false"),
        ({"operation": "delete"}, "operation='delete' is not one of create, move, cancel"),
        ({"outcomespath": "hdfs:/x"}, "outcomesPath='hdfs:/x' is not a path of the executors' machines"),
    ],
)
def test_what_cannot_be_is_one_sentence(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(OptionError) as error:
        Options.parse(given)
    assert sentence in str(error.value)


def _batch(**columns: Any) -> pa.RecordBatch:
    types = {
        "id": pa.string(),
        "ts": pa.int64(),
        "body": pa.binary(),
        "priority": pa.int32(),
        "headers": pa.map_(pa.string(), pa.string()),
    }
    return pa.RecordBatch.from_arrays(
        [pa.array(values, types[name]) for name, values in columns.items()], names=list(columns)
    )


def test_rows_that_do_not_fit_a_frame_go_in_pieces() -> None:
    count, each = 20, limits.BATCH_BYTES_MAX // 10
    batch = _batch(id=[f"m-{row}" for row in range(count)], ts=range(count), body=[b"x" * each] * count)
    cut = list(pieces(batch))
    assert len(cut) > 1
    assert pa.Table.from_batches(cut).equals(pa.Table.from_batches([batch]))
    assert all(piece.num_rows == 1 or piece.nbytes <= limits.BATCH_BYTES_MAX // 2 for piece in cut)
    many = limits.BATCH_COUNT_MAX + 1
    assert all(
        piece.num_rows <= limits.BATCH_COUNT_MAX
        for piece in pieces(_batch(id=["m"] * many, ts=[0] * many, body=[b""] * many))
    )


def test_bad_rows_go_apart_with_their_reasons_and_the_rest_stays_whole() -> None:
    form = "an id is 1 to 64 characters of 0-9 A-Z a-z . _ : -"
    faults: list[tuple[Any, Any, Any, Any, str]] = [
        (None, 1, b"x", None, "the id is null"),
        ("a b", 1, b"x", None, form),
        ("", 1, b"x", None, form),
        ("line\n", 1, b"x", None, form),
        ("i" * 65, 1, b"x", None, form),
        ("no-time", None, b"x", None, "the time is null"),
        ("no-body", 1, None, None, "the body is null"),
        ("no-header", 1, b"x", [("k", None)], "a header is null"),
    ]
    good: list[tuple[Any, ...]] = [("b", 7, b"y", None), ("a", 5, MARK + b"?", [("k", "v")]), ("c" * 64, 7, b"", [])]
    mixed = [*(fault[:4] for fault in faults[:4]), *good, *(fault[:4] for fault in faults[4:])]
    ids, ts, body, headers = zip(*mixed, strict=True)
    rows = rows_of(_batch(id=ids, ts=ts, body=body, priority=[3] * len(mixed), headers=headers), "create")
    assert rows.bad == [BadRow(str(one[0]), one[4]) for one in faults]
    assert (rows.ids, rows.ts) == (["a", "b", "c" * 64], [5, 7, 7])
    assert list(map(opened, rows.bodies)) == [MARK + b"?", b"y", b""]
    assert rows.priorities == [3, 3, 3]
    assert list(map(decode_headers, rows.headers)) == [{"k": "v"}, {}, {}]


@pytest.mark.parametrize("start", [0, 3])
def test_a_slice_of_a_batch_has_its_own_rows(start: int) -> None:
    batch = _batch(id=["bad id", "a", "b", "c", "d"], ts=[0, 1, 2, 3, 4], body=[b"0", b"1", b"2", b"3", b"4"])
    rows = rows_of(batch.slice(start, 2), "create")
    assert rows.ids == ["bad id", "a", "b", "c", "d"][start + (start == 0) : start + 2]
    assert len(rows.bad) == (start == 0)
    assert (rows.priorities, rows.headers) == ([], [])
