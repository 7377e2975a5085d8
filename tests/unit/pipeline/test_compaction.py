"""Compaction beside the batches: whatever a batch or a kill does meanwhile, every row stays in the lake once."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark", reason="the pipeline is not installed")

from dejaq.errors import PipelineError
from dejaq.pipeline.lake import compaction as compactions
from dejaq.pipeline.lake import lake as lakes
from dejaq.pipeline.lake.compaction import Compaction, compact
from dejaq.pipeline.lake.joining import join
from dejaq.pipeline.lake.lake import Lake
from dejaq.testing.waiting import patient
from tests.unit.pipeline.delta.tables import event, write

DAY, OPEN = "day=2026-11-15", "state=open/day=2026-11-15T08"
FEW = {"events": 2, "messages": 2, "releases": 2, "facts": 2, "log_messages": 2}


class Killed(BaseException):
    pass


def opened(root: Path) -> Lake:
    """A lake of this machine, whose files can be joined without Spark."""
    return Lake(cast("Any", None), str(root))


def message(name: str) -> dict[str, Any]:
    return {"store": "a", "topic": "mail", "id": name, "priority": 1, "lateness_ms": 1.5}


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """A lake with three files of events and three of pending messages, held for writing."""
    found = opened(tmp_path)
    with found.writing():
        for number in range(1, 4):
            add(found, "events", DAY, [event(number)])
            add(found, "messages", OPEN, [message(f"m-{number}")])
        yield found


def add(lake: Lake, table: str, partition: str, rows: Sequence[dict[str, Any]], *, replaced: bool = False) -> None:
    """A batch with one file, in place of what the partition had or beside it."""
    root = lake.files.local
    assert root is not None
    batch = lake.new_batch()
    file = write(root, table, f"{batch}/{partition}/part.parquet", rows)
    lake.commit(lake.head.with_table(table, replaced=[partition] if replaced else [], added=[file]))


def rows(lake: Lake, table: str, column: str) -> list[Any]:
    root = lake.files.local
    assert root is not None
    files = [root / table / file for file in lake.head.files(table)]
    return sorted(value for file in files for value in pq.ParquetFile(file).read()[column].to_pylist())


def left_over(lake: Lake) -> set[str]:
    """The directories of tables that no commit and no log names."""
    named = {batch for commit in _commits(lake) for table in commit.tables for batch in commit.batches(table)}
    root = lake.files.local
    assert root is not None
    return {path.name for path in root.glob("*/[bc]*") if path.is_dir()} - named


def _commits(lake: Lake) -> list[Any]:
    return [lake._load(name) for name in lake._names]


def test_what_came_meanwhile_stays_beside_the_joined_files(lake: Lake) -> None:
    with Compaction(lake, FEW, None) as compaction:
        compaction.begin()
        add(lake, "events", DAY, [event(4)])
        done = compaction.finish()
        assert compaction.finish() == []
    assert [(one.table, one.partitions, one.files) for one in done] == [("events", 1, 3), ("messages", 1, 3)]
    assert lake.head.operation == "OPTIMIZE"
    assert rows(lake, "events", "sequence") == [1, 2, 3, 4]
    assert rows(lake, "messages", "id") == ["m-1", "m-2", "m-3"]
    assert (len(lake.head.files("events")), len(lake.head.files("messages"))) == (2, 1)
    assert left_over(lake) == set()


def test_a_partition_that_was_written_again_meanwhile_stays_as_it_is(lake: Lake) -> None:
    with Compaction(lake, FEW, None) as compaction:
        compaction.begin()
        add(lake, "messages", OPEN, [message("m-2")], replaced=True)
        done = compaction.finish()
    assert [one.table for one in done] == ["events"]
    assert rows(lake, "messages", "id") == ["m-2"]
    assert rows(lake, "events", "sequence") == [1, 2, 3]
    assert left_over(lake) == set()


def test_partitions_with_few_or_large_files_are_left_alone(lake: Lake) -> None:
    assert compact(lake, files_max=FEW | {"events": 3}, bytes_small=1) == []
    assert [one.table for one in compact(lake, files_max=FEW | {"events": 3})] == ["messages"]
    assert lake.head.version == 7


def test_a_batch_that_fails_leaves_nothing_of_the_compaction(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread is asked to stop, so that the failure need not wait for a large file."""
    begun, told = threading.Event(), threading.Event()

    def slowly(*arguments: Any, wanted: Any) -> None:
        begun.set()
        told.wait(patient(10))
        join(*arguments, wanted=wanted)

    monkeypatch.setattr(compactions, "join", slowly)
    before = lake.head

    def fail() -> None:
        with Compaction(lake, FEW, None) as compaction:
            compaction.begin()
            assert begun.wait(patient(10))
            compaction._abandoned.set()
            told.set()
            raise ValueError("a batch")

    with pytest.raises(ValueError, match="a batch"):
        fail()
    assert lake.head == before
    assert left_over(lake) == set()


@pytest.mark.parametrize("point", ["pipeline.events_written", "pipeline.messages_written", "pipeline.before_commit"])
def test_a_kill_at_any_point_leaves_the_lake_as_it_was_and_the_next_writer_clears_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    lake = opened(tmp_path)
    with lake.writing():
        for number in range(1, 4):
            add(lake, "events", DAY, [event(number)])
            add(lake, "messages", OPEN, [message(f"m-{number}")])

        def crash_at(name: str) -> None:
            if name == point:
                raise Killed(name)

        with monkeypatch.context() as patched:
            patched.setattr(lakes, "crash_at", crash_at)
            with pytest.raises(Killed):
                compact(lake)
    again = opened(tmp_path)
    with again.writing():
        assert again.head.version == 6
        assert rows(again, "events", "sequence") == [1, 2, 3]
        assert rows(again, "messages", "id") == ["m-1", "m-2", "m-3"]
        assert left_over(again) == set()
        assert len(compact(again)) == 2


def test_what_a_kill_leaves_of_a_thread_is_removed_by_the_next_writer(lake: Lake, tmp_path: Path) -> None:
    compaction = Compaction(lake, FEW, None)
    compaction.begin()
    compaction._thread.shutdown()
    assert left_over(lake) == {compaction._aside}
    # As the next writer does, which has the lake only when this one has gone.
    lake._remove_unfinished()
    assert left_over(lake) == set()


def test_a_damaged_file_is_an_error_of_one_sentence(lake: Lake) -> None:
    root = lake.files.local
    assert root is not None
    (root / "events" / lake.head.files("events")[0]).write_bytes(b"PAR1")
    with pytest.raises(PipelineError, match=f"the events of {DAY} cannot be compacted: "):
        compact(lake)
    assert left_over(lake) == set()
