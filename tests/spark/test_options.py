"""The options of format `dejaq`, without a query."""

from __future__ import annotations

import pytest

from pyspark_dejaq.options import OptionError, Options


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
