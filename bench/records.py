"""The results file: one record for each bench, system and shape, with medians over repeats."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.harness.figures import medians

RESULTS = Path(__file__).resolve().parent / "results"
LATEST = RESULTS / "latest.json"
Record = dict[str, Any]
# What a record holds besides its figures.
DESCRIPTION = frozenset(
    {"bench", "system", "durable", "version", "settings", "shape", "repeats", "spread", "curve", "error", "measured_at"}
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
    """One record: what was done, then every figure under its own name."""
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
    """The figures of a record, those that are numbers."""
    return {
        name: value
        for name, value in record.items()
        if name not in DESCRIPTION and isinstance(value, int | float) and not isinstance(value, bool)
    }


def shape_text(record: Record) -> str:
    """A shape as one short text, the same for every system."""
    return " ".join(f"{name}={value}" for name, value in record.get("shape", {}).items())


def key_of(record: Record) -> tuple[str, str, str]:
    """What makes a record the same measurement as another."""
    return record["bench"], record["system"], shape_text(record)


def merged(old: Sequence[Record], new: Sequence[Record]) -> list[Record]:
    """Old records without those that were measured again, and the new ones."""
    again = {key_of(record) for record in new}
    return [record for record in old if key_of(record) not in again] + list(new)


def read(path: Path) -> dict[str, Any]:
    """A results file."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def write(path: Path, machine: dict[str, Any], records: Sequence[Record]) -> None:
    """Write a results file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".part")
    text = json.dumps({"machine": machine, "records": list(records)}, indent=1, ensure_ascii=False)
    aside.write_text(text + "\n", encoding="utf-8")
    aside.replace(path)
