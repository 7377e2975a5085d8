"""D12: the name of a batch that Spark writes depends on all its content."""

from __future__ import annotations

import pytest

from pyspark_dejaq import writing
from pyspark_dejaq.rows import Rows


def rows(**columns: list[object]) -> Rows:
    made: dict[str, list[object]] = {"ids": ["a", "b"], "ts": [5, 6], "bodies": [b"one", b"two"]}
    return Rows(**{**made, **columns})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "other",
    [
        {"ids": ["a", "c"]},
        {"ts": [5, 7]},
        {"bodies": [b"one", b"other"]},
        {"bodies": [b"onet", b"wo"]},
        {"headers": [b"", b"h"]},
        {"priorities": [0, 1]},
    ],
    ids=lambda other: next(iter(other)),
)
def test_batches_that_differ_in_anything_have_different_names(other: dict[str, list[object]]) -> None:
    """D12: a second batch with the same ids and times but other bodies is no repeat of the first."""
    assert writing._name("job", rows(**other)) != writing._name("job", rows())


def test_a_repeated_batch_has_the_same_name_and_one_of_another_job_has_not() -> None:
    """D12: a retried task and a replayed micro-batch add nothing."""
    assert writing._name("job", rows()) == writing._name("job", rows())
    assert writing._name("job", rows()) != writing._name("another job", rows())
