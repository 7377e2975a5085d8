"""The program behind `make test`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("run_tests", ROOT / "scripts/run_tests.py")
assert SPEC is not None
assert SPEC.loader is not None
run_tests = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(run_tests)


@pytest.mark.parametrize(("first", "second"), [(0, 0), (1, 0), (0, 1), (2, 1)])
def test_the_suite_fails_when_either_half_fails(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, first: int, second: int
) -> None:
    """The output of the second half follows that of the first, even when the second half ends first."""
    done = tmp_path / "done"
    waits = f"import pathlib, time\nwhile not pathlib.Path({str(done)!r}).exists(): time.sleep(0.01)\n"
    slow = f"{waits}print('first'); raise SystemExit({first})"
    quick = f"import pathlib; print('second'); pathlib.Path({str(done)!r}).touch(); raise SystemExit({second})"
    code = run_tests.run_both([sys.executable, "-c", slow], [sys.executable, "-c", quick])
    assert bool(code) == bool(first or second)
    assert capfd.readouterr().out == "first\nsecond\n"


def test_reports_are_written_where_they_are_requested(tmp_path: Path) -> None:
    assert run_tests.report(None, "core") == []
    assert f"--junit-xml={tmp_path}/core.xml" in run_tests.report(tmp_path, "core")
