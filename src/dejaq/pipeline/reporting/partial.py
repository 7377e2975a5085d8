"""Results of a job by hour or by file, kept below the lake, so that a job reads only what is new since its last run.

A file of the lake never changes. What a job counts in a file therefore stays true, and what it counts in an hour stays
true as long as the same files may have rows of that hour. `_results/_partial/NAME.json` is removed without harm.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from dejaq.errors import PipelineError
from dejaq.pipeline.intake.messages import DONE
from dejaq.pipeline.lake.lake import Lake
from dejaq.pipeline.reporting.results import RESULTS
from dejaq.pipeline.reporting.rows import Rows

# A table and one of its files.
File = tuple[str, str]
PARTIAL = f"{RESULTS}/_partial"
FORMAT = 1
HOUR_MS = 3_600_000
_HOUR_US = HOUR_MS * 1000
# A file that says no more than that its hand-overs lie within more hours is counted again whenever one is added.
_HOURS_MAX = 24 * 400


def by_hour(lake: Lake, name: str, files: Mapping[int, Sequence[File]], work: Callable[[list[int]], Rows]) -> Rows:
    """The rows of all hours. `work` gives those of some hours, each with its `hour_ms`; the others are known."""
    keys = {hour: _digest(found) for hour, found in files.items()}
    known = {int(hour): part for hour, part in _kept(lake, name).items()}
    stale = {hour for hour, key in keys.items() if known.get(hour, {}).get("key") != key}
    found: dict[int, Rows] = defaultdict(list)
    for row in work(sorted(stale)) if stale else ():
        found[row["hour_ms"]].append(row)
    now: dict[int, dict[str, Any]] = {
        hour: {"key": key, "rows": found[hour]} if hour in stale else known[hour] for hour, key in keys.items()
    }
    _keep(lake, name, {str(hour): part for hour, part in now.items()}, changed=now != known)
    return [row for _, part in sorted(now.items()) for row in part["rows"]]


def by_file(
    lake: Lake, name: str, files: Sequence[str], work: Callable[[list[str]], Rows], *, about: str = ""
) -> dict[str, Rows]:
    """The rows of each file. `work` gives those of some files, each with its `file`; the others are known.

    `about` names what the rows also depend on. If it changes, all files are read again.
    """
    known = _kept(lake, name, about)
    new = [file for file in files if file not in known]
    now: dict[str, Rows] = {file: known.get(file, []) for file in files}
    for row in work(new) if new else ():
        now[row["file"]].append({column: value for column, value in row.items() if column != "file"})
    _keep(lake, name, now, changed=now.keys() != known.keys(), about=about)
    return now


def hours_of_creations(lake: Lake, *, since_ms: int, before: int) -> dict[int, list[File]] | None:
    """The hours in which messages were created, and the files that may have events of each or of the hours `before`.

    None if unknown.
    """
    found: dict[int, list[File]] = defaultdict(list)
    for file in lake.head.files("events"):
        first, last = lake.delta.extent("events", file, "at_ms")
        if first is None or last is None:
            return None
        for hour in range(max(first, since_ms) // HOUR_MS, last // HOUR_MS + 1 + before):
            found[hour * HOUR_MS].append(("events", file))
    # The hours after the newest event are not there yet.
    return {hour: files for hour, files in found.items() if hour <= lake.head.reached_ms}


def hours_of_hand_overs(lake: Lake) -> dict[int, list[File]] | None:
    """The hours in which user code got messages, and the files that may have rows of each; None if unknown."""
    found: dict[int, list[File]] = defaultdict(list)
    done = [file for part, files in lake.head.partitions("messages").items() if DONE in part for file in files]
    for table, files in (("messages", done), ("releases", lake.head.files("releases"))):
        for file in files:
            first, last = lake.delta.extent(table, file, "handed_us")
            if first is None or last is None:
                if lake.delta.extent(table, file, "last_order" if table == "messages" else "lease")[0] is None:
                    return None
                continue
            hours = range(first // _HOUR_US, last // _HOUR_US + 1)
            if len(hours) > _HOURS_MAX:
                return None
            for hour in hours:
                found[hour * HOUR_MS].append((table, file))
    return found


def _digest(files: Sequence[File]) -> str:
    return hashlib.sha256("\n".join(f"{table}/{file}" for table, file in sorted(files)).encode()).hexdigest()[:16]


def _kept(lake: Lake, name: str, about: str = "") -> dict[str, Any]:
    with suppress(PipelineError, ValueError, KeyError, TypeError):
        content = json.loads(lake.files.read(f"{PARTIAL}/{name}.json"))
        # Another lake in the same place has files of other names.
        if content["format"] == FORMAT and content.get("about", "") == about and isinstance(content["parts"], dict):
            return dict(content["parts"])
    return {}


def _keep(lake: Lake, name: str, parts: Mapping[str, Any], *, changed: bool, about: str = "") -> None:
    """Put the parts in place, if the lake can be written."""
    if not changed:
        return
    with suppress(PipelineError):
        lake.files.make(PARTIAL)
        text = json.dumps({"format": FORMAT, "about": about, "parts": parts}, separators=(",", ":"))
        lake.files.put(f"{PARTIAL}/{name}.json", text.encode() + b"\n")
