"""Compares the lake with the oracle."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import deltalake
import polars

from dejaq.pipeline.lake.lake import Lake
from dejaq.pipeline.lake.tables import TABLES
from tests.spark import oracle
from tests.spark.history import Event

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def collected(rows: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in rows.collect()]


def _sorted(rows: Iterable[dict[str, Any]], *by: str) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: tuple((row[name] is not None, row[name]) for name in by))


def assert_lake_equals_oracle(lake: Lake, events: Sequence[Event]) -> None:
    """Check that every table has exactly the rows that the events produce."""
    by_event = ("origin", "sequence", "row")
    found = [{name: row[name] for name in events[0]} for row in collected(lake.read("events"))]
    assert _sorted(found, *by_event) == _sorted(events, *by_event)
    messages, releases = oracle.rows_of_events(events)
    by_life = ("store", "topic", "id", "born", "last_ms")
    held = [{name: row[name] for name in messages[0]} for row in collected(lake.read("messages"))]
    assert _sorted(held, *by_life) == _sorted(messages, *by_life)
    by_release = ("topic", "id", "handed_us", "lease")
    names = list(releases[0]) if releases else []
    back = [{name: row[name] for name in names} for row in collected(lake.read("releases"))]
    assert _sorted(back, *by_release) == _sorted(releases, *by_release)
    assert_facts_equal(lake, events)


def assert_facts_equal(lake: Lake, events: Sequence[Event]) -> None:
    expected = oracle.facts(events)
    rows = collected(lake.read("facts"))
    assert len(rows) == len({(row["topic"], row["minute_ms"]) for row in rows})
    found = {(row["topic"], row["minute_ms"]): row for row in rows}
    assert found.keys() == expected.keys()
    for key, row in found.items():
        shown = {name: value for name, value in row.items() if name not in ("topic", "minute_ms", "day")}
        wanted = {name: expected[key][name] for name in shown}
        assert (key, shown) == (key, wanted)


def assert_other_engines_read_the_same(lake: Lake) -> None:
    """Check that each table, read as a Delta table at the newest version, has the rows that this pipeline reads."""
    assert lake.is_published
    for table in TABLES.values():
        if table.optional and not lake.head.files(table.name):
            continue
        place = f"{lake.files.local}/{table.name}"
        names = [*table.columns, *table.partitioned_by]
        ours = _texts(collected(lake.read(table.name)), names)
        found = deltalake.DeltaTable(place)
        assert found.version() == lake.head.version
        assert _texts(_with_store(found.to_pyarrow_table().to_pylist()), names) == ours
        assert _texts(_with_store(polars.read_delta(place).to_dicts()), names) == ours


def _with_store(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A broker that has its store alone leaves the column out of its events; the lake's reader gives it the origin."""
    return [row | {"store": row["origin"]} if row.get("origin") and not row["store"] else row for row in rows]


def _texts(rows: list[dict[str, Any]], names: list[str]) -> list[str]:
    return sorted(repr([row[name] for name in names]) for row in rows)
