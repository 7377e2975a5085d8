"""Files of events become one without Spark: every row in its order, in groups that a reader can leave out."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark", reason="the pipeline is not installed")

from dejaq.pipeline.lake import joining
from tests.spark.history import Event, random_store, write_segments


def _written(home: Path, origins: tuple[str, ...], seed: int) -> tuple[list[Path], list[Event]]:
    store = random_store(seed, steps=60, origins=origins)
    paths: list[Path] = []
    events: list[Event] = []
    for origin in origins:
        own = [event for event in store.events if event["origin"] == origin]
        paths += write_segments(home, own, cuts=(own[len(own) // 2]["sequence"],))
        events += own
    return paths, events


def test_every_row_of_single_and_shared_stores_is_in_the_joined_file(tmp_path: Path) -> None:
    alone, first = _written(tmp_path, ("a",), 3)
    shared, then = _written(tmp_path, ("b", "c"), 4)
    target = tmp_path / "joined.parquet"
    joining.join([*alone, *shared], target)
    found = pq.read_table(target).to_pylist()
    # A segment of a store that one broker has alone does not name the store.
    expected = [event | ({} if event["ticket"] is not None else {"store": None}) for event in (*first, *then)]
    assert [{name: row[name] for name in expected[0]} for row in found] == expected
    # Joining is repeated as the day grows.
    again = tmp_path / "again.parquet"
    joining.join([target, *alone], again)
    assert pq.read_table(again).to_pylist() == [*found, *found[: len(first)]]


def test_small_groups_are_joined_and_each_group_has_its_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, events = _written(tmp_path, ("a",), 5)
    target = tmp_path / "joined.parquet"
    joining.join(paths, target)
    assert pq.read_metadata(target).num_row_groups == 1
    monkeypatch.setattr(joining, "_ROWS_MIN", 1)
    joining.join(paths, target)
    meta = pq.read_metadata(target)
    assert meta.num_row_groups == len(paths) == 2
    place = meta.schema.names.index("at_ms")
    times = [meta.row_group(number).column(place).statistics for number in range(2)]
    assert times[0].max <= times[1].min
    assert (times[0].min, times[1].max) == (events[0]["at_ms"], events[-1]["at_ms"])
