"""The results file: one record per bench, system and shape, with medians over repeats."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.harness.figures import medians

RESULTS = Path(__file__).resolve().parent / "results"
LATEST = RESULTS / "latest.json"
Record = dict[str, Any]
# The fields of a record that are not figures.
DESCRIPTION = frozenset(
    {
        "bench",
        "system",
        "durable",
        "version",
        "settings",
        "shape",
        "repeats",
        "spread",
        "curve",
        "error",
        "measured_at",
        "samples",
    }
)


def record_of(
    *,
    bench: str,
    system: str,
    durable: bool,
    version: str,
    settings: dict[str, Any],
    shape: dict[str, Any],
    runs: Sequence[dict[str, Any]],
    measured_at: str,
    extras: dict[str, Any] | None = None,
) -> Record:
    """One record: the work, then every figure under its own name."""
    figures, spread = medians(runs)
    return {
        "bench": bench,
        "system": system,
        "durable": durable,
        "version": version,
        "settings": settings,
        "shape": shape,
        "repeats": len(runs),
        "measured_at": measured_at,
        **figures,
        "spread": spread,
        **(extras or {}),
    }


def figures_of(record: Record) -> dict[str, float]:
    """The numeric figures of a record."""
    return {
        name: value
        for name, value in record.items()
        if name not in DESCRIPTION and isinstance(value, int | float) and not isinstance(value, bool)
    }


def shape_text(record: Record) -> str:
    """A shape as one short text, the same for every system."""
    return " ".join(f"{name}={value}" for name, value in record.get("shape", {}).items())


def peer_shape(record: Record) -> str:
    """The shape without what only DejaQ has, so that it is the same for a peer."""
    shape = {name: value for name, value in record.get("shape", {}).items() if name != "buckets"}
    return shape_text({"shape": shape})


def key_of(record: Record) -> tuple[str, str, str]:
    """The key of a record: records with equal keys are the same measurement."""
    return record["bench"], record["system"], shape_text(record)


def merged(old: Sequence[Record], new: Sequence[Record]) -> list[Record]:
    """Old records that were not measured again, and the new ones."""
    again = {key_of(record) for record in new}
    return [record for record in old if key_of(record) not in again] + list(new)


def read(path: Path) -> dict[str, Any]:
    """A results file."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def write(path: Path, machine: dict[str, Any], records: Sequence[Record]) -> None:
    """Write a results file completely or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".part")
    text = json.dumps({"machine": machine, "records": list(records)}, indent=1, ensure_ascii=False)
    aside.write_text(text + "\n", encoding="utf-8")
    aside.replace(path)
