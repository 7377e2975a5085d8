"""Compaction: partitions in many small files become one file each.

In a lake on this machine, a thread joins the files while the next batch is added, and the result is committed after
that batch. A partition that the batch has changed meanwhile is left as it is.
"""

from __future__ import annotations

import secrets
import shutil
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from dejaq.errors import PipelineError
from dejaq.pipeline.lake.joining import Abandoned, join
from dejaq.pipeline.lake.lake import Lake
from dejaq.pipeline.lake.tables import TABLES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# By what Spark sorts the rows of a file: neighbours are what is read together.
_ORDER = {
    "events": ("at_ms", "origin", "sequence", "row"),
    "messages": ("topic", "id"),
    "releases": ("topic", "handed_us"),
    "facts": ("topic", "minute_ms"),
    "log_messages": ("bucket", "offset"),
}
# Files to be joined, by table and partition.
Crowded = Mapping[str, Mapping[str, list[str]]]


@dataclass(frozen=True, slots=True)
class Compacted:
    """What one compaction did to a table."""

    table: str
    partitions: int
    files: int


def compact(
    lake: Lake, *, files_max: Mapping[str, int] | None = None, bytes_small: int | None = None
) -> list[Compacted]:
    """In every partition with more than so many files (of its table, or 1), make those below `bytes_small` one.

    A file that has grown beyond that is never written again, so that all compactions together write a row a few times.
    The rows stay the same. The lake must be held for writing.
    """
    with Compaction(lake, files_max, bytes_small) as compaction:
        compaction.begin()
        return compaction.finish()


class Compaction:
    """Compacts a lake that is held for writing, as `compact` says, beside the batches that are added to it."""

    def __init__(self, lake: Lake, files_max: Mapping[str, int] | None, bytes_small: int | None) -> None:
        self._lake, self._files_max, self._bytes_small = lake, files_max, bytes_small
        self._thread = ThreadPoolExecutor(1, "compaction")
        self._abandoned = threading.Event()
        self._crowded: Crowded = {}
        # Where the thread writes. Nobody reads it, and the next writer removes what is left of it.
        self._aside = ""
        self._joining: Future[None] | None = None

    def begin(self) -> None:
        """Start to compact what the lake is now."""
        self._crowded = self._look()
        if self._crowded and self._lake.files.local is not None:
            self._aside = f"compacting-{secrets.token_hex(4)}"
            # Looked up here, since only this thread may.
            times = {
                file: self._lake.delta.extent("events", file, "at_ms")[0] or 0
                for files in self._crowded.get("events", {}).values()
                for file in files
            }
            self._joining = self._thread.submit(self._join, self._crowded, self._aside, times)

    def finish(self) -> list[Compacted]:
        """Wait for the end of what was begun, and commit it."""
        crowded, self._crowded = self._crowded, {}
        joining, self._joining = self._joining, None
        if joining is not None:
            joining.result()
            crowded = self._unchanged(crowded)
        if not crowded:
            return []
        lake, after = self._lake, self._lake.head
        batch = lake.new_batch()
        for table, partitions in crowded.items():
            gone = [file for files in partitions.values() for file in files]
            if joining is None:
                added = lake.write(table, _gathered(lake.read_files(table, gone), table), batch)
            else:
                added = self._take(table, partitions, batch)
            after = after.with_table(table, dropped=gone, added=added)
        self._aside = ""
        lake.commit(after, "OPTIMIZE")
        return [Compacted(table, len(found), sum(map(len, found.values()))) for table, found in crowded.items()]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._abandoned.set()
        self._thread.shutdown()
        self._discard()

    def _look(self) -> Crowded:
        found = {}
        for table in _ORDER:
            most = 1 if self._files_max is None else self._files_max[table]
            small = _small_files(self._lake, table, self._bytes_small)
            crowded = {name: files for name, files in small.items() if len(files) > most}
            if crowded:
                found[table] = crowded
        return found

    def _join(self, crowded: Crowded, aside: str, times: Mapping[str, int]) -> None:
        assert self._lake.files.local is not None
        for table, partitions in crowded.items():
            home = self._lake.files.local / table
            for partition, files in partitions.items():
                self._lake.files.make(f"{table}/{aside}/{partition}")
                # Events by the first time in each file: those of several brokers follow one another as they came.
                ordered = sorted(files, key=lambda file: (times.get(file, 0), file))
                target = home / aside / partition / _FILE
                try:
                    join([home / file for file in ordered], target, TABLES[table], wanted=self._is_wanted)
                except Abandoned:
                    return
                except (OSError, pa.ArrowException) as error:
                    raise PipelineError(f"the {table} of {partition} cannot be compacted: {error}") from None
            # Here rather than at the commit, since it takes time.
            self._lake.files.sync(f"{table}/{aside}")

    def _is_wanted(self) -> bool:
        return not self._abandoned.is_set()

    def _unchanged(self, crowded: Crowded) -> Crowded:
        """Those whose files the lake still has; what was written for the others is removed."""
        kept: dict[str, dict[str, list[str]]] = {}
        for table, partitions in crowded.items():
            there = set(self._lake.head.files(table))
            for partition, files in partitions.items():
                if there.issuperset(files):
                    kept.setdefault(table, {})[partition] = files
                else:
                    self._lake.files.remove(f"{table}/{self._aside}/{partition}")
            if table not in kept:
                self._lake.files.remove(f"{table}/{self._aside}")
        return kept

    def _take(self, table: str, partitions: Mapping[str, list[str]], batch: str) -> list[str]:
        """Give what was written the name of a batch; returns the files."""
        assert self._lake.files.local is not None
        home = self._lake.files.local / table
        (home / self._aside).rename(home / batch)
        self._lake.written(table, batch)
        return [f"{batch}/{partition}/{_FILE}" for partition in partitions]

    def _discard(self) -> None:
        """Remove what was written and not committed."""
        home = self._lake.files.local
        if self._aside and home is not None:
            for table in _ORDER:
                shutil.rmtree(home / table / self._aside, ignore_errors=True)


_FILE = "part-00000.parquet"


def _small_files(lake: Lake, table: str, bytes_small: int | None) -> dict[str, list[str]]:
    """The files of each partition that are worth joining."""
    found = lake.head.partitions(table)
    if bytes_small is None:
        return {name: list(files) for name, files in found.items()}
    return {
        name: [file for file in files if lake.files.size(f"{table}/{file}") < bytes_small]
        for name, files in found.items()
        if len(files) > 1
    }


def _gathered(rows: DataFrame, table: str) -> DataFrame:
    """The rows of a partition in one place, in their order."""
    by = TABLES[table].partitioned_by
    return rows.repartition(*by).sortWithinPartitions(*by, *_ORDER[table])
