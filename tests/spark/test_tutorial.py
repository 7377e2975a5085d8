"""The tutorial's commands work as described, from an empty directory, in a process of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TUTORIAL = Path(__file__).resolve().parents[2] / "examples" / "spark" / "tutorial.py"


def test_the_tutorial_runs(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, str(TUTORIAL), str(tmp_path)], capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    for line in (
        "1. 20,000 messages scheduled",
        "2. 10,000 messages consumed",
        "3. 10,000 messages are pending",
        "4. the audit found no fault",
    ):
        assert line in result.stdout
    page = (tmp_path / "report.html").read_text()
    assert "campaign" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
