"""The results of the jobs as JSON files below the lake, for programs that show them, such as the gateway's pages.

`_results/JOB.json` is what the job found last. The form is described in docs/pipeline.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dejaq.errors import PipelineError

if TYPE_CHECKING:
    from dejaq.pipeline.lake.files import Files
    from dejaq.pipeline.lake.lake import Lake
    from dejaq.pipeline.reporting.findings import Findings

RESULTS = "_results"
FORMAT = 1


def keep_findings(lake: Lake, found: Findings, *, made_ms: int) -> bool:
    """Keep what a job found in place of what it found before; whether the lake could be written."""
    content = {
        "job": found.job,
        "failed": found.failed,
        "version": lake.head.version,
        "newest_ms": lake.head.reached_ms or None,
        "figures": found.figures,
        "tables": found.tables,
    }
    return keep_result(lake.files, found.job, content, made_ms=made_ms)


def keep_result(files: Files, name: str, content: Mapping[str, Any], *, made_ms: int) -> bool:
    """Put a result in place in one step; whether the lake could be written. A lake may be open for reading only."""
    text = json.dumps({"format": FORMAT, "made_ms": made_ms, **content}, indent=1)
    try:
        files.make(RESULTS)
        files.put(f"{RESULTS}/{name}.json", text.encode() + b"\n")
    except PipelineError:
        return False
    return True
