"""The set-up in docs/security.md, run as it is written, and its table of checks."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from dejaq.testing.waiting import patient
from dejaq.trial.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/security.md").read_text()
AFTER = """
dejaq topic describe invoices --json
DEJAQ_API_KEY=wrong dejaq whoami || true
dejaq browse invoices --json
grep -r -l hello data || echo nothing readable
"""


def test_the_ten_lines_work_as_they_are_written(tmp_path: Path) -> None:
    section = PAGE.partition("## Set up in ten lines")[2]
    block = re.search(r"```sh\n(.*?)```", section, re.S)
    assert block is not None
    lines = block[1].splitlines()
    assert len(lines) == 10
    port = str(free_port())
    text = block[1].replace("7400", port).replace("--data data", f"--data data --listen 127.0.0.1:{port}")
    (tmp_path / "set-up.sh").write_text(f"set -e\n{text}{AFTER}")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DEJAQ_")}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    with (tmp_path / "out").open("w") as out, (tmp_path / "errors").open("w") as errors:
        process = subprocess.Popen(
            ["bash", "set-up.sh"],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout=patient(60))
        finally:
            # The broker that the script started belongs to its group.
            os.killpg(process.pid, signal.SIGTERM)
    shown, failed = (tmp_path / "out").read_text(), (tmp_path / "errors").read_text()
    assert code == 0, failed
    assert "bodies+headers" in shown
    assert "UNAUTHENTICATED" in failed
    assert '"customer": "7"' in shown
    assert "nothing readable" in shown


def test_every_security_check_of_the_scorecard_has_a_row() -> None:
    table = PAGE.partition("## How it is checked")[2]
    assert {f"S{number}" for number in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)} <= set(re.findall(r"\bS\d+\b", table))
