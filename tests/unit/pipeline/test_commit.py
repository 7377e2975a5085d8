"""A commit is parsed as it was written, and a damaged commit is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dejaq.errors import PipelineError

pytest.importorskip("pyspark", reason="the pipeline is not installed")

from dejaq.pipeline.lake.commit import Commit, batch_of, version_of
from dejaq.pipeline.lake.ranges import Ranges


def sample() -> Commit:
    commit = Commit(version=3, written_ms=5, events=7, newest_ms={"a": 9}, records={"a": Ranges(((1, 4), (6, 8)))})
    commit = commit.with_table(
        "messages", replaced=(), added=["batch=1/state=open/day=x/f", "batch=1/state=done/day=x/f"]
    )
    return replace(commit, stores={"b": "shop"}).with_reached(3)


def test_a_commit_is_parsed_as_it_was_written() -> None:
    assert Commit.from_json(sample().to_json(), "it") == sample()


def test_replaced_partitions_lose_their_files_and_others_grow() -> None:
    after = sample().with_table(
        "messages", replaced=["state=open/day=x"], added=["batch=2/state=open/day=x/f", "batch=2/state=done/day=x/f"]
    )
    assert after.partitions("messages") == {
        "state=open/day=x": ("batch=2/state=open/day=x/f",),
        "state=done/day=x": ("batch=1/state=done/day=x/f", "batch=2/state=done/day=x/f"),
    }


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"format": 1}', sample().to_json()[:-30]])
def test_a_damaged_commit_is_refused(content: bytes) -> None:
    with pytest.raises(PipelineError, match=r"lake/3\.json is damaged"):
        Commit.from_json(content, "lake/3.json")


def test_a_commit_of_a_newer_release_is_refused() -> None:
    newer = sample().to_json().replace(b'"format": 3', b'"format": 6')
    with pytest.raises(PipelineError, match="has format 6; this release reads up to 5"):
        Commit.from_json(newer, "it")


def test_a_commit_of_an_earlier_release_is_read_and_continued() -> None:
    values = json.loads(sample().to_json()) | {"format": 1}
    for name in ("stores", "reached"):
        del values[name]
    values["tables"]["messages"] = {"day=x": [f"{batch_of(1, 'x')}/day=x/f"]}
    earlier = Commit.from_json(json.dumps(values).encode(), "it")
    assert (earlier.store_of("a"), earlier.origins_of("a")) == ("a", ["a"])
    assert earlier.files_since("messages", ms=100) == earlier.files("messages")


def test_a_commit_lists_the_files_with_rows_changed_since_a_time() -> None:
    commit = Commit(newest_ms={"a": 10})
    for version in (1, 2, 3):
        file = f"{batch_of(version, 'x')}/state=done/day=x/f"
        commit = replace(commit, newest_ms={"a": 10 * version}).with_table("messages", added=[file])
        commit = commit.with_reached(version)
    assert [version_of(file) for file in commit.files_since("messages", ms=11)] == [2, 3]
    assert [version_of(file) for file in commit.files_since("messages", ms=20)] == [2, 3]
    assert [version_of(file) for file in commit.files_since("messages", ms=31)] == []
    assert [version_of(file) for file in commit.files_since("messages", ms=10)] == [1, 2, 3]
