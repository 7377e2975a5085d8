"""The page of the pipeline: what the jobs on the lake found last. They leave it as JSON files; no Spark runs here."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from starlette.requests import Request

from dejaq.web.gateway import Gateway
from dejaq.web.pages.route import Values
from dejaq.web.rights import CLUSTER, RightShown

JOBS = ("audit", "forecast", "accuracy", "retries", "traffic")
FORMAT = 1
RESULT_BYTES_MAX = 32 * 1024 * 1024
ROWS_MAX = 200
# How many minutes the forecast draws, of all topics together.
MINUTES_MAX = 1_440
_COLUMNS = ("due", "expected", "consumers")


async def pipeline_page(request: Request, gateway: Gateway) -> Values:
    """The results of every job. The lake knows all topics, so callers need the right `operate`."""
    right = (await gateway.rights.of(CLUSTER)).get("operate", RightShown(True))
    lake = gateway.settings.lake
    results: dict[str, Any] = {}
    problems: list[str] = []
    if lake is not None and right.allowed:
        results, problems = await asyncio.to_thread(read_results, Path(lake))
    return {
        "right": right,
        "lake": lake,
        "jobs": JOBS,
        "results": results,
        "problems": problems,
        "forecast": forecast_chart(results["forecast"]) if "forecast" in results else None,
        "rows_max": ROWS_MAX,
        "now": gateway.client.now_ms(),
    }


def read_results(lake: Path) -> tuple[dict[str, Any], list[str]]:
    """The results that there are, by job, and what is wrong with those that cannot be shown."""
    found: dict[str, Any] = {}
    problems = []
    for job in JOBS:
        path = lake / "_results" / f"{job}.json"
        try:
            with path.open("rb") as file:
                content = file.read(RESULT_BYTES_MAX + 1)
        except FileNotFoundError:
            continue
        except OSError as error:
            problems.append(f"{job}: {error.strerror}")
            continue
        try:
            if len(content) > RESULT_BYTES_MAX:
                raise ValueError(f"more than {RESULT_BYTES_MAX} bytes")
            found[job] = _checked(json.loads(content))
        except ValueError as error:
            problems.append(f"{job}: {error}")
    return found, problems


def _checked(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not isinstance(value.get("format"), int):
        raise ValueError("the file is not a result")
    if value["format"] > FORMAT:
        raise ValueError("a newer release has written it; update the gateway")
    tables = value.get("tables")
    figures = value.get("figures")
    if not isinstance(tables, dict) or not isinstance(figures, dict) or not isinstance(value.get("made_ms"), int):
        raise ValueError("the file is not a result")
    rows = {name: table for name, table in tables.items() if isinstance(table, list)}
    if not all(isinstance(row, dict) for table in rows.values() for row in table):
        raise ValueError("the file is not a result")
    return {**value, "tables": rows}


def forecast_chart(result: dict[str, Any]) -> dict[str, list[float]]:
    """What is due and expected in each minute, and the consumers that it takes, of all topics together."""
    minutes: dict[int, list[float]] = {}
    for row in result["tables"].get("minutes", ()):
        start = row.get("minute_ms")
        if not isinstance(start, int):
            continue
        summed = minutes.setdefault(start, [0.0, 0.0, 0.0])
        for place, name in enumerate(_COLUMNS):
            value = row.get(name)
            summed[place] += value if isinstance(value, int | float) else 0
    starts = sorted(minutes)[:MINUTES_MAX]
    columns = {name: [minutes[start][place] for start in starts] for place, name in enumerate(_COLUMNS)}
    return {"starts": [float(start) for start in starts], **columns}
