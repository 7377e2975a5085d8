"""The audit of a lake: sums that are kept by file, and a closer look only at the messages that may be at fault."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from dejaq.pipeline.intake.messages import OPEN, PENDING
from dejaq.pipeline.jobs import audit as audits
from dejaq.pipeline.lake.lake import Lake
from dejaq.pipeline.lake.tables import TABLES
from dejaq.pipeline.reporting.partial import by_file
from dejaq.pipeline.reporting.rows import LISTED_MAX, Rows, of_topics, rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from dejaq.pipeline.spark.snapshot import TableSnapshot

# What the audit looks at in a message.
_LIFE = ("topic", "id", "born", "outcome", "created_ms", "finished_ms")
# So many ids are looked up with the results kept by file. More are looked up in the whole lake at each audit.
_KEPT_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Audited:
    """The balance of each topic, how many findings there are of each kind, and the first of them."""

    balance: Rows
    counts: dict[str, int]
    findings: Rows


def audited(lake: Lake, snapshot: TableSnapshot | None = None, *, topics: Sequence[str] = ()) -> Audited:
    """Audit a lake, and compare it with a snapshot of the timeline.

    Reads what is pending, the files that are new since the last audit, and those with findings.
    """
    files = lake.head.files("messages")
    of_messages = by_file(
        lake, "balance", files, lambda new: rows_of(audits.counted(lake.read_files("messages", new, named=True)))
    )
    of_releases = by_file(
        lake,
        "early",
        lake.head.files("releases"),
        lambda new: rows_of(audits.counted_releases(lake.read_files("releases", new, named=True))),
    )
    strays = _rows(lake, "messages", of_messages, "strays", topics).where("born IS NULL")
    parts: list[DataFrame] = []
    if _files_with(of_messages, "early") or _files_with(of_releases, "early"):
        too_soon = _rows(lake, "messages", of_messages, "early", topics)
        parts.append(audits.early(too_soon, _rows(lake, "releases", of_releases, "early", topics)))
    opened = [name for name in lake.head.partitions("messages") if name.startswith(f"state={OPEN}/")]
    pending = of_topics(lake.read("messages", opened), topics)
    doubtful = audits.doubtful(pending, strays).persist()
    elsewhere: dict[str, int] = {}
    try:
        lives = _lives(lake, doubtful)
        if lives is not None:
            parts.append(audits.contradictions(lives))
            elsewhere = {row["topic"]: row["elsewhere"] for row in rows_of(audits.elsewhere(lives))}
        if snapshot is not None:
            parts += _against(lake, snapshot, pending, strays, topics)
        counts, listed = _listed(parts)
    finally:
        doubtful.unpersist()
    summed = [row for rows in of_messages.values() for row in rows if not topics or row["topic"] in topics]
    return Audited(audits.balance(summed, elsewhere), counts, listed)


def _listed(parts: list[DataFrame]) -> tuple[dict[str, int], Rows]:
    if not parts:
        return {}, []
    found = reduce(lambda one, other: one.unionByName(other), parts).persist()
    try:
        counts = {row["finding"]: row["count"] for row in rows_of(found.groupBy("finding").count())}
        return counts, rows_of(found.orderBy("finding", "topic", "id"), LISTED_MAX) if counts else []
    finally:
        found.unpersist()


def _files_with(counts: dict[str, Rows], column: str) -> list[str]:
    """The files that have rows of a kind."""
    return [file for file, rows in counts.items() if any(row[column] for row in rows)]


def _rows(lake: Lake, table: str, counts: dict[str, Rows], column: str, topics: Sequence[str]) -> DataFrame:
    return of_topics(lake.read_files(table, _files_with(counts, column)), topics)


def _lives(lake: Lake, ids: DataFrame) -> DataFrame | None:
    """Every row of these ids; None if there are no such ids. Where they are the same as before, new files are read."""
    few = rows_of(ids.orderBy("topic", "id"), _KEPT_MAX + 1)
    if not few:
        return None

    def of_files(files: list[str]) -> DataFrame:
        rows = lake.read_files("messages", files, named=True).select("file", *_LIFE)
        return rows.join(F.broadcast(ids) if len(few) <= _KEPT_MAX else ids, ["topic", "id"], "left_semi")

    files = lake.head.files("messages")
    if len(few) > _KEPT_MAX:
        return of_files(files)
    about = hashlib.sha256(repr([(row["topic"], row["id"]) for row in few]).encode()).hexdigest()
    kept = by_file(lake, "lives", files, lambda new: rows_of(of_files(new)), about=about)
    rows: list[tuple[Any, ...]] = [tuple(row[name] for name in _LIFE) for found in kept.values() for row in found]
    schema = TABLES["messages"].schema
    return lake.spark.createDataFrame(rows, type(schema)([schema[name] for name in _LIFE]))


def _against(
    lake: Lake, snapshot: TableSnapshot, pending: DataFrame, strays: DataFrame, topics: Sequence[str]
) -> list[DataFrame]:
    """What differs from a snapshot. Only if something does are the earlier rows of the same ids read as well."""
    times = (snapshot.begun_ms, snapshot.ended_ms)
    there = of_topics(snapshot.rows, topics)
    ended = of_topics(lake.read_from("messages", "finished_ms", snapshot.begun_ms), topics)
    # A row without a creation that ended since then is among both.
    earlier = strays.where((F.col("outcome") != PENDING) & (F.col("finished_ms") < snapshot.begun_ms))
    rows = pending.select(*_LIFE).unionByName(ended.select(*_LIFE)).unionByName(earlier.select(*_LIFE))
    ids = audits.against(rows, there, *times).select("topic", "id").distinct().persist()
    try:
        if ids.isEmpty():
            return []
        all_rows = lake.read("messages").select(*_LIFE).join(ids, ["topic", "id"], "left_semi")
        return [audits.against(all_rows, there.join(ids, ["topic", "id"], "left_semi"), *times)]
    finally:
        ids.unpersist()
