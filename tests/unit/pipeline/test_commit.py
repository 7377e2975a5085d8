"""A commit is read back as it was written, and a damaged one is refused."""

from __future__ import annotations

import pytest

from dejaq.errors import PipelineError

pytest.importorskip("pyspark", reason="the pipeline is not installed")

from dejaq.pipeline.commit import Commit
from dejaq.pipeline.ranges import Ranges


def sample() -> Commit:
    commit = Commit(version=3, written_ms=5, events=7, newest_ms={"a": 9}, records={"a": Ranges(((1, 4), (6, 8)))})
    return commit.with_table(
        "messages", replaced=(), added=["batch=1/state=open/day=x/f", "batch=1/state=done/day=x/f"]
    )


def test_it_is_read_back_as_written() -> None:
    assert Commit.from_json(sample().to_json(), "it") == sample()


def test_replaced_partitions_lose_what_they_held_and_others_grow() -> None:
    after = sample().with_table(
        "messages", replaced=["state=open/day=x"], added=["batch=2/state=open/day=x/f", "batch=2/state=done/day=x/f"]
    )
    assert after.partitions("messages") == {
        "state=open/day=x": ("batch=2/state=open/day=x/f",),
        "state=done/day=x": ("batch=1/state=done/day=x/f", "batch=2/state=done/day=x/f"),
    }


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"format": 1}', sample().to_json()[:-30]])
def test_a_damaged_one_is_refused(content: bytes) -> None:
    with pytest.raises(PipelineError, match=r"lake/3\.json is damaged"):
        Commit.from_json(content, "lake/3.json")


def test_one_of_a_newer_release_is_refused() -> None:
    newer = sample().to_json().replace(b'"format": 1', b'"format": 2')
    with pytest.raises(PipelineError, match="has format 2; this release reads 1"):
        Commit.from_json(newer, "it")
