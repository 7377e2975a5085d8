"""The lake as a whole: its tables at a commit, and the one step by which a batch becomes part of it.

A batch writes its rows into directories of its own name, which nobody reads. Then one small file, the commit, is put in
place, and names the files of which each table consists from then on together with the records that are in them.
A pipeline that is killed before has changed nothing; what it left is removed by the next.
"""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from dejaq.crashpoints import crash_at
from dejaq.errors import PipelineError
from dejaq.pipeline.delta.publishing import DeltaLogs
from dejaq.pipeline.intake.events import with_store
from dejaq.pipeline.lake.commit import DIGITS, FORMAT, Commit, batch_of, is_unfinished
from dejaq.pipeline.lake.files import Files, files_of, local_path
from dejaq.pipeline.lake.tables import TABLES, TEXT, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COMMITS = "_commits"
LOCK = "_writer.lock"
DELTA_LOG = "_delta_log"
# Readers that began with an earlier commit find its files until this many have followed.
COMMITS_KEPT = 5
_ENDLESS = 2**62


def no_lake(root: str) -> PipelineError:
    """What to say where nothing has been committed."""
    return PipelineError(f"there is no lake at {root}; fill one with `dejaq pipeline run --journal DIR --lake {root}`")


def local_head(root: str) -> Commit | None:
    """What a lake on this machine is, found without Spark; None for one elsewhere."""
    path = local_path(root)
    if path is None:
        return None
    commits = sorted(path.glob(f"{COMMITS}/*.json"))
    return Commit.from_json(commits[-1].read_bytes(), str(commits[-1])) if commits else Commit()


def is_published(head: Commit, files: Files) -> bool:
    """Whether the tables of other engines are at this commit, so that nothing remains to be done for it."""
    return not head.version or (head.format >= FORMAT and DeltaLogs(files).version == head.version)


class Lake:
    """A directory of tables."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self.spark = spark
        self.files = files_of(root, spark)
        self.delta = DeltaLogs(self.files)
        self._names: list[str] = []
        self.head = self._newest()

    @classmethod
    def existing(cls, spark: SparkSession, root: str) -> Lake:
        """A lake to be read; raises PipelineError when there is none."""
        lake = cls(spark, root)
        if not lake.head.version:
            raise no_lake(root)
        return lake

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Be the lake's only writer; clears away what an earlier one left unfinished."""
        self.files.make(COMMITS)
        with self.files.locked(LOCK):
            self.head = self._newest()
            self._remove_unfinished()
            self._publish()
            yield

    @property
    def is_published(self) -> bool:
        """Whether nothing remains to be done for a commit: the tables of other engines are at the newest one."""
        return is_published(self.head, self.files)

    # Reading

    def read(self, table: str, partitions: Iterable[str] | None = None, *, commit: Commit | None = None) -> DataFrame:
        """A table, or some of its partitions, at the present commit or at another."""
        found = (commit or self.head).partitions(table)
        chosen = found if partitions is None else [name for name in partitions if name in found]
        return self.read_files(table, [file for name in chosen for file in found[name]])

    def files_within(
        self, table: str, partition: str, column: str, first: int, end: int, *, commit: Commit | None = None
    ) -> list[str]:
        """The files of a partition that may have a value of a column from `first` to below `end`."""
        files = (commit or self.head).partitions(table).get(partition, ())
        return [file for file in files if self.delta.may_contain(table, file, column, first, end)]

    def read_from(self, table: str, column: str, least: int) -> DataFrame:
        """The rows in which a number is `least` or more; only the files that may have such rows are read."""
        files = self.head.files(table)
        found = [file for file in files if self.delta.may_contain(table, file, column, least, _ENDLESS)]
        return self.read_files(table, found).where(F.col(column) >= least)

    def read_files(self, table: str, files: list[str], *, named: bool = False) -> DataFrame:
        """The rows of a table that are in some of its files; `named`: each with its `file`."""
        kind = TABLES[table]
        schema = type(kind.schema)(list(kind.schema))
        for column in kind.partitioned_by:
            schema.add(column, TEXT)
        if not files:
            schema = schema.add("file", TEXT) if named else schema
            return self.spark.range(0).select(*(F.lit(None).cast(c.dataType).alias(c.name) for c in schema))
        # An earlier release wrote the origin where the store is now.
        before = "store" in kind.columns and "origin" not in kind.columns
        reader = self.spark.read.schema(schema.add("origin", TEXT) if before else schema)
        rows = reader.option("basePath", self.files.path(table)).parquet(
            *(self.files.path(f"{table}/{file}") for file in files)
        )
        rows = with_store(rows) if "store" in kind.columns else rows
        if named:
            rows = rows.withColumn("file", F.element_at(F.split(F.input_file_name(), f"/{table}/"), -1))
        return rows.drop("batch", "origin") if before else rows.drop("batch")

    # Writing

    def new_batch(self) -> str:
        """The name of the directories that a batch writes, never used before."""
        return batch_of(self.head.version + 1, secrets.token_hex(4))

    def write(self, table: str, rows: DataFrame, batch: str) -> list[str]:
        """Write the rows of a batch and make them durable; the files they are in."""
        kind = TABLES[table]
        where = f"{table}/{batch}"
        plain = {f"parquet.enable.dictionary#{column}": "false" for column in kind.unlike}
        writer = rows.select(*kind.columns, *kind.partitioned_by).write.options(**plain)
        writer.partitionBy(*kind.partitioned_by).mode("overwrite").parquet(self.files.path(where))
        self.written(table, batch)
        return [f"{batch}/{file}" for file in self._files_in(where, kind)]

    def adopt(self, table: str, files: Mapping[Path, str], batch: str) -> list[str]:
        """Take files that have the columns of a table as they are, each into the partition given for it."""
        where = f"{table}/{batch}"
        adopted = [f"{partition}/{path.name}" for path, partition in files.items()]
        for path, name in zip(files, adopted, strict=True):
            self.files.copy_in(path, f"{where}/{name}")
        if adopted:
            self.written(table, batch)
        return [f"{batch}/{name}" for name in adopted]

    def written(self, table: str, batch: str) -> None:
        """Make what a batch wrote into a table durable."""
        crash_at(f"pipeline.{table}_written")
        self.files.sync(f"{table}/{batch}")

    def commit(self, after: Commit, operation: str = "WRITE") -> None:
        """Make `after` what the lake is, if nobody else has changed it meanwhile; then publish it to other engines."""
        after = replace(
            after.with_reached(self.head.version + 1),
            written_ms=int(time.time() * 1000),
            format=FORMAT,
            identity=after.identity or str(uuid.uuid4()),
            operation=operation,
        )
        crash_at("pipeline.before_commit")
        name = f"{after.version:0{DIGITS}d}.json"
        self.files.write_new(f"{COMMITS}/{name}", after.to_json())
        crash_at("pipeline.committed")
        self.head = after
        self._names.append(name)
        self.delta.publish([after])
        self.clear_away()

    def clear_away(self) -> None:
        """Remove what no commit needs any more that readers may still use: the last few, and those of the time kept."""
        names = self._names
        while len(names) > COMMITS_KEPT:
            expired = self._load(names[0])
            if self.head.written_ms - expired.written_ms < self.head.keep_ms:
                break
            after = self._load(names[1])
            for table in TABLES:
                for batch in expired.batches(table) - after.batches(table):
                    self.files.remove(f"{table}/{batch}")
            self.files.remove(f"{COMMITS}/{names.pop(0)}")
        if names:
            self.delta.clear_away(int(names[0][:DIGITS]))

    def _remove_unfinished(self) -> None:
        """Remove what was written for a commit that was never made."""
        for table in TABLES:
            for name in self.files.list(table):
                if name != DELTA_LOG and is_unfinished(name, self.head.version):
                    self.files.remove(f"{table}/{name}")

    def _publish(self) -> None:
        """Give the logs of other engines what an earlier pipeline did not live to give them."""
        if self.head.format < FORMAT or not self.head.version:
            return
        self.delta.publish([*map(self._load, self._names[-COMMITS_KEPT:-1]), self.head])

    def _files_in(self, where: str, table: Table) -> list[str]:
        """The files of a batch, each below the directories of its partition."""
        found = [""]
        for _ in range(len(table.partitioned_by) + 1):
            found = [
                f"{above}/{name}".lstrip("/")
                for above in found
                for name in self.files.list(f"{where}/{above}".rstrip("/"))
                if not name.startswith(("_", "."))
            ]
        return found

    # Commits

    def _newest(self) -> Commit:
        # Listed once: a lake that keeps thousands of commits would be slower with each of them.
        self._names = [name for name in self.files.list(COMMITS) if name.endswith(".json")]
        return self._load(self._names[-1]) if self._names else Commit()

    def _load(self, name: str) -> Commit:
        return Commit.from_json(self.files.read(f"{COMMITS}/{name}"), self.files.path(f"{COMMITS}/{name}"))
