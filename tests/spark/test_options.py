"""The options of format `dejaq`, and its rows, without a query."""

from __future__ import annotations

import pytest

from dejaq import limits
from pyspark_dejaq.options import OptionError, Options
from pyspark_dejaq.rows import BadRow, Rows


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


def test_rows_that_do_not_fit_a_frame_go_in_pieces() -> None:
    count, each = 20, limits.BATCH_BYTES_MAX // 10
    rows = Rows(
        ids=[f"m-{row}" for row in range(count)],
        ts=list(range(count)),
        bodies=[b"x" * each] * count,
        priorities=list(range(count)),
        headers=[b""] * count,
        bad=[BadRow("bad", "why")],
    )
    pieces = list(rows.split())
    assert [piece.ids for piece in pieces] != [rows.ids]
    assert [message_id for piece in pieces for message_id in piece.ids] == rows.ids
    assert [priority for piece in pieces for priority in piece.priorities] == rows.priorities
    assert all(sum(map(len, piece.bodies)) <= limits.BATCH_BYTES_MAX // 2 for piece in pieces)
    assert [row for piece in pieces for row in piece.bad] == rows.bad
