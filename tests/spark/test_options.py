"""The options of the format `dejaq`, and its rows, without a query."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from dejaq import limits
from dejaq.domain.bodies.packing import MARK, opened
from dejaq.domain.headers import decode_headers
from pyspark_dejaq import DefaultSource
from pyspark_dejaq.columns import READ_SCHEMA
from pyspark_dejaq.options import OptionError, Options
from pyspark_dejaq.rows import BadRow, check_read_schema, check_schema, pieces, rows_of


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
        ({"via": "export"}, "call pyspark_dejaq.exporting.export(spark, url, topic, directory)"),
        ({"operation": "delete"}, "operation='delete' is not one of create, move, cancel"),
        ({"outcomespath": "hdfs:/x"}, "outcomesPath='hdfs:/x' is not a path of the executors' machines"),
    ],
)
def test_invalid_options_are_an_error_of_one_sentence(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(OptionError) as error:
        Options.parse(given)
    assert sentence in str(error.value)


@pytest.mark.parametrize("text", ["9" * 40, "²", "9223372036854775807", "-9223372036854775808", "NaN", ""])
def test_a_time_out_of_range_is_an_error_of_one_sentence(text: str) -> None:
    """P12: the error was a ValueError of protobuf in the worker."""
    with pytest.raises(OptionError, match="startingTimestamp="):
        Options.parse({"startingtimestamp": text})
    assert Options.parse({"startingtimestamp": "0001-01-01T00:00:00"}).start < 0


def test_a_row_has_one_time_by_either_column() -> None:
    """P12: `ts` silently took precedence over a different `due`, and without a `ts` the `due` was ignored."""
    due = pa.array([5_000_000, 5_000_000, None, None], pa.timestamp("us", "UTC"))
    batch = pa.record_batch(
        {"ID": list("abcd"), "ts": pa.array([5_000, None, 7, None], pa.int64()), "due": due, "body": [b"x"] * 4}
    )
    rows = rows_of(batch, "create")
    assert dict(zip(rows.ids, rows.ts, strict=True)) == {"a": 5_000, "b": 5_000, "c": 7}
    assert rows.bad == [BadRow("d", "the time is null")]
    torn = pa.record_batch({"id": ["a"], "ts": [4_000], "due": due[:1], "body": [b"x"]})
    assert rows_of(torn, "create").bad == [BadRow("a", "ts and due are different times; drop one of the columns")]


def test_a_row_without_an_id_is_not_called_none() -> None:
    """P12: a null id was shown as the text None."""
    rows = rows_of(_batch(id=[None, "None"], ts=[1, 1], body=[b"x", b"x"]), "create")
    assert (rows.bad, rows.ids) == ([BadRow(None, "the id is null")], ["None"])


def test_a_frame_that_was_read_can_be_written() -> None:
    """P12: a write did not know the columns of a read, or names in another case."""
    kinds: dict[str, DataType] = {
        "string": StringType(),
        "int": IntegerType(),
        "bigint": LongType(),
        "timestamp": TimestampType(),
    }
    kinds |= {"binary": BinaryType(), "map<string,string>": MapType(StringType(), StringType())}
    fields = [StructField(name, kinds[kind]) for name, kind in (part.split(" ") for part in READ_SCHEMA.split(", "))]
    read = StructType(fields)
    check_schema(read, "create")
    check_read_schema(read, READ_SCHEMA)
    check_schema(StructType([StructField(name, StringType()) for name in ("Id", "BODY")] + [fields[3]]), "create")
    with pytest.raises(OptionError, match="one name in another case"):
        check_schema(StructType([StructField(name, StringType()) for name in ("id", "ID")]), "cancel")
    with pytest.raises(OptionError, match="column 'colour' is unknown"):
        check_schema(StructType([StructField(name, StringType()) for name in ("id", "colour")]), "cancel")
    with pytest.raises(OptionError, match=r"leave .schema\(...\) out"):
        check_read_schema(StructType(fields[:2]), READ_SCHEMA)


def test_the_batch_read_of_a_journal_names_the_stream(tmp_path: Path) -> None:
    """P12: the error asked for the option `subscribe`."""
    with pytest.raises(OptionError, match=r"the journal is read as a stream: spark\.readStream"):
        DefaultSource({"journal": str(tmp_path)}).reader(StructType())


def test_the_workers_use_an_environment_that_is_not_activated(tmp_path: Path) -> None:
    """D17: Spark ran another Python, which has no `dejaq`, and reported DATA_SOURCE_NOT_FOUND."""
    (tmp_path / "python3").symlink_to("/bin/true")
    program = "import os, pyspark_dejaq; print(os.environ.get('PYSPARK_PYTHON'))"
    plain = {key: value for key, value in os.environ.items() if not key.startswith("PYSPARK")}

    def chosen(**more: str) -> str:
        run = [sys.executable, "-c", program]
        return subprocess.run(run, env={**plain, **more}, capture_output=True, text=True, check=True).stdout.strip()

    assert chosen(PATH=str(tmp_path)) == sys.executable
    assert chosen(PATH=str(tmp_path), PYSPARK_PYTHON="/usr/bin/mine") == "/usr/bin/mine"
    assert chosen(PATH=str(Path(sys.executable).parent)) == "None"


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


def test_rows_that_do_not_fit_a_frame_are_sent_in_several() -> None:
    count, each = 20, limits.BATCH_BYTES_MAX // 10
    batch = _batch(id=[f"m-{row}" for row in range(count)], ts=range(count), body=[b"x" * each] * count)
    cut = list(pieces(batch, "create"))
    assert len(cut) > 1
    assert pa.Table.from_batches(cut).equals(pa.Table.from_batches([batch]))
    assert all(piece.num_rows == 1 or piece.nbytes <= limits.BATCH_BYTES_MAX // 2 for piece in cut)
    many = limits.BATCH_COUNT_MAX + 1
    assert all(
        piece.num_rows <= limits.BATCH_COUNT_MAX
        for piece in pieces(_batch(id=["m"] * many, ts=[0] * many, body=[b""] * many), "create")
    )


def test_invalid_rows_are_separated_with_their_reasons_and_the_others_are_kept() -> None:
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
    assert rows.bad == [BadRow(one[0], one[4]) for one in faults]
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
