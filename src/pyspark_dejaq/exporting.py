"""Exports: a snapshot of a topic as Parquet files, written several at once, which Spark and others read natively.

Rows that pass through a Python data source cost Spark's JVM more than everything else together. An export avoids that:
each task turns runs into Arrow columns and writes a file, and the JVM sees no row before it reads the files.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from dejaq.errors import DejaqError
from pyspark_dejaq.columns import ARROW_SCHEMA, CODED, READ_SCHEMA
from pyspark_dejaq.options import OptionError, Options
from pyspark_dejaq.reading import BucketRange, PendingReader, read_range
from pyspark_dejaq.worker import forget_transport, settle_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = tuple(ARROW_SCHEMA.names)
# A row group is held in memory until it is written.
ROW_GROUP_ROWS_MAX, ROW_GROUP_BYTES_MAX = 500_000, 64 * 1024 * 1024
# Few values for many rows; ids and bodies differ from row to row, and a dictionary of them is work for nothing.
_REPEATED = ("topic", "bucket", "status", "priority", "attempts", "owner")
_TYPES = dict.fromkeys(("topic", "status", "owner"), CODED)
# Known from the call, or from another column: files that only a query reads go without, and the query adds them.
_DERIVED = {"topic": "", "due": "ts"}
# What an export writes beside its files. Readers of Parquet pass over names with an underscore.
STATEMENT = "_export.json"


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """A file of an export."""

    path: str
    rows: int
    size: int


@dataclass(frozen=True, slots=True)
class ExportStatement:
    """What `_export.json` says of an export; one without `complete` is being written, or was abandoned."""

    topic: str
    begun_ms: int
    # When it may be removed by a later export into the same directory; 0 for never.
    expires_ms: int
    complete: bool = False
    rows: int = 0
    files: int = 0

    def put(self, directory: Path) -> None:
        """Write it, in place of the one before."""
        aside = directory / f"{STATEMENT}.tmp"
        aside.write_text(json.dumps(asdict(self)))
        aside.replace(directory / STATEMENT)


def planned(
    url: str, topic: str, *, columns: Sequence[str] = (), files: int = 8, timeout: float = 60.0
) -> list[BucketRange]:
    """The parts of an export, one per file; raises when the topic or a column is unknown, or no broker answers."""
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown:
        raise OptionError(f"a message has no column {unknown[0]!r}; it has {', '.join(COLUMNS)}")
    with_body = not columns or "body" in columns
    given = {"dejaq.url": url, "subscribe": topic, "minPartitions": str(files), "timeout": f"{timeout:.0f}"}
    options = Options.parse({**given, "includeBody": str(with_body).lower()})
    return [part for part in PendingReader(options).partitions() if isinstance(part, BucketRange)]


def export_range(part: BucketRange, directory: str, columns: Sequence[str], *, durable: bool) -> ExportedFile:
    """Write one file of an export. Written under another name first, so that a retried task leaves one whole file.

    The file of a `durable` export is synced; one that only a query reads needs no sync.
    """
    path = Path(directory) / f"part-{part.first:05d}.parquet"
    aside = path.with_name(f"_{path.name}.{secrets.token_hex(4)}.tmp")
    # Texts that many rows share come as numbers, so the writer need not look at each one; in the file they are texts.
    schema = pa.schema([(name, _TYPES.get(name, ARROW_SCHEMA.field(name).type)) for name in columns or COLUMNS])
    settle_in()
    try:
        rows = 0
        with pq.ParquetWriter(
            aside,
            schema,
            # Written once and read once or twice: compressing takes longer than it saves.
            compression="none",
            use_dictionary=[name for name in _REPEATED if name in schema.names],
            # Ids are in no order, so their extremes let no reader skip anything.
            write_statistics=[name for name in ("ts", "due") if name in schema.names],
            store_schema=False,
        ) as writer:
            for group in _row_groups(read_range(part, schema), schema):
                writer.write_table(group, row_group_size=len(group))
                rows += len(group)
        if durable:
            with aside.open("rb") as file:
                os.fsync(file.fileno())
        aside.replace(path)
    except DejaqError as error:
        forget_transport(part.url)
        told = f"exporting topic {part.topic!r} from {part.url} ended early; export it again"
        raise type(error)(told, details=error.message) from None
    finally:
        aside.unlink(missing_ok=True)
    return ExportedFile(str(path), rows, path.stat().st_size)


def _row_groups(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch)
        rows, size = rows + len(batch), size + batch.nbytes
        if rows >= ROW_GROUP_ROWS_MAX or size >= ROW_GROUP_BYTES_MAX:
            yield pa.Table.from_batches(held, schema).unify_dictionaries()
            held, rows, size = [], 0, 0
    if held:
        yield pa.Table.from_batches(held, schema).unify_dictionaries()


class Export:
    """A finished export. As a context manager it is removed at the end."""

    def __init__(
        self, spark: SparkSession, directory: Path, files: Sequence[ExportedFile], topic: str, columns: Sequence[str]
    ) -> None:
        self._spark, self._columns = spark, columns
        self.directory, self.files, self.topic = directory, tuple(files), topic

    @property
    def rows(self) -> int:
        """The number of messages."""
        return sum(file.rows for file in self.files)

    def frame(self) -> DataFrame:
        """The messages as a DataFrame that Spark reads without Python."""
        from pyspark.sql import functions as F  # noqa: N812  the usual name

        written = columns_written(self._columns)
        # With a schema, Spark need not read a footer first.
        rows = self._spark.read.schema(_spark_schema(written)).parquet(self.directory.as_uri())
        derived = {"topic": F.lit(self.topic), "due": F.timestamp_millis("ts")}
        return rows.select(
            *(F.col(name) if name in written else derived[name].alias(name) for name in self._columns or COLUMNS)
        )

    def remove(self) -> None:
        """Remove the files. A DataFrame over them fails afterwards."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Export:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


def export(
    spark: SparkSession,
    url: str,
    topic: str,
    directory: str | Path,
    *,
    columns: Sequence[str] = (),
    files: int = 8,
    keep_s: float = 86_400.0,
    timeout: float = 60.0,
) -> Export:
    """Write a snapshot of a topic below a directory that the driver and every executor see, and give it to Spark.

    Use it as a context manager to remove the files at the end of the query. An export that was not removed, because the
    driver was killed, is removed by the next export into the same directory after `keep_s` seconds.
    """
    parts = planned(url, topic, columns=columns, files=files, timeout=timeout)
    base = Path(directory).absolute()
    remove_expired(base, now_ms=int(time.time() * 1000))
    place = base / f"{topic}-{secrets.token_hex(6)}"
    statement = begin(place, topic, keep_s)
    work = partial(_export_parts, parts=parts, directory=str(place), columns=columns_written(columns))
    try:
        made = spark.range(0, len(parts), 1, len(parts)).mapInArrow(work, "path string, rows long, size long").collect()
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    found = [ExportedFile(row.path, row.rows, row.size) for row in made]
    finish(place, statement, found)
    return Export(spark, place, found, topic, columns)


def columns_written(columns: Sequence[str]) -> tuple[str, ...]:
    """The columns in the files of a query that wants these."""
    wanted = tuple(columns) or COLUMNS
    written = tuple(name for name in wanted if _DERIVED.get(name) not in ("", *wanted))
    return written or wanted


def _spark_schema(columns: Sequence[str]) -> str:
    types = dict(column.split(" ", 1) for column in READ_SCHEMA.split(", "))
    return ", ".join(f"{name} {types[name]}" for name in columns)


def _export_parts(
    batches: Iterator[pa.RecordBatch], *, parts: Sequence[BucketRange], directory: str, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    numbers = list(chain.from_iterable(batch.column(0).to_pylist() for batch in batches))
    for number in numbers:
        file = export_range(parts[number], directory, columns, durable=False)
        yield pa.RecordBatch.from_pylist([asdict(file)])


def begin(place: Path, topic: str, keep_s: float) -> ExportStatement:
    """Make the directory of an export, which must be new or empty, and say in it what it will be."""
    place.mkdir(parents=True, exist_ok=True)
    if any(place.iterdir()):
        raise OptionError(f"{place} is not empty; an export needs a directory of its own")
    now_ms = int(time.time() * 1000)
    statement = ExportStatement(topic, now_ms, now_ms + int(keep_s * 1000) if keep_s else 0)
    statement.put(place)
    return statement


def finish(place: Path, statement: ExportStatement, files: Sequence[ExportedFile]) -> None:
    """Say in the directory of an export that it is complete."""
    rows = sum(file.rows for file in files)
    ExportStatement(statement.topic, statement.begun_ms, statement.expires_ms, True, rows, len(files)).put(place)


def remove_expired(base: Path, *, now_ms: int) -> list[Path]:
    """Remove the exports below a directory whose time is over, and nothing else; returns them."""
    removed = []
    for path in base.glob(f"*/{STATEMENT}"):
        # A statement that another process removes or replaces at this moment belongs to it.
        with suppress(OSError, ValueError, KeyError, TypeError):
            expires_ms = int(json.loads(path.read_text())["expires_ms"])
            if 0 < expires_ms < now_ms:
                shutil.rmtree(path.parent)
                removed.append(path.parent)
    return removed
