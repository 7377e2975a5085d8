"""Figures of the pipeline's measurements: kept under a name as JSON, with the machine and the time."""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def keep(name: str, figures: dict[str, Any]) -> None:
    """Write the figures to `results/NAME.json` and show them."""
    record = {
        "measured": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"cores": os.cpu_count(), "python": platform.python_version()},
        **figures,
    }
    text = json.dumps(record, indent=1) + "\n"
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(text, encoding="utf-8")
    print(text)
