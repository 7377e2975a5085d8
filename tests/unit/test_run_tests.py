"""The program behind `make test`."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("run_tests", ROOT / "scripts/run_tests.py")
assert SPEC is not None
assert SPEC.loader is not None
run_tests = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = run_tests
SPEC.loader.exec_module(run_tests)


@pytest.mark.parametrize(("first", "second"), [(0, 0), (1, 0), (0, 1), (2, 1)])
def test_both_halves_run_and_their_exit_codes_are_known(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, first: int, second: int
) -> None:
    """The output of the second half follows that of the first, even when the second half ends first."""
    done = tmp_path / "done"
    waits = f"import pathlib, time\nwhile not pathlib.Path({str(done)!r}).exists(): time.sleep(0.01)\n"
    slow = f"{waits}print('first'); raise SystemExit({first})"
    quick = f"import pathlib; print('second'); pathlib.Path({str(done)!r}).touch(); raise SystemExit({second})"
    codes = run_tests.run_both([sys.executable, "-c", slow], [sys.executable, "-c", quick])
    assert codes == (first, second)
    assert capfd.readouterr().out == "first\nsecond\n"


def test_reports_are_written_where_they_are_requested(tmp_path: Path) -> None:
    assert run_tests.report(None, "core") == []
    assert f"--junit-xml={tmp_path}/core.xml" in run_tests.report(tmp_path, "core")


TESTS = """
import pathlib

def test_once():
    seen = pathlib.Path(__file__).with_name("seen")
    before = seen.exists()
    seen.touch()
    assert before

def test_never():
    assert {passes}
"""


@pytest.mark.parametrize(("passes", "expected"), [(True, 0), (False, 1)])
def test_a_test_that_failed_runs_once_more_alone(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, passes: bool, expected: int
) -> None:
    """The suite passes only if every failed test passes then."""
    file = tmp_path / "test_made.py"
    file.write_text(TESTS.format(passes=passes), encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    half = run_tests.Half(
        ["--rootdir", str(tmp_path), "-c", str(tmp_path / "pytest.ini"), str(file)], tmp_path / "cache"
    )
    seed = ["--randomly-seed=1", "-p", "no:cov"]
    assert subprocess.run(half.command(*seed), check=False).returncode == run_tests.TESTS_FAILED
    assert run_tests.run_failed_again(half, seed) == expected
    assert ("passed alone" in capfd.readouterr().out) == passes


def test_many_failures_do_not_run_again(tmp_path: Path) -> None:
    """They have a common cause."""
    record = tmp_path / "v" / "cache"
    record.mkdir(parents=True)
    (record / "lastfailed").write_text(
        json.dumps({f"test_{n}": True for n in range(run_tests.FAILED_AGAIN_MAX + 1)}), encoding="utf-8"
    )
    half = run_tests.Half([], tmp_path)
    assert len(half.failed()) == run_tests.FAILED_AGAIN_MAX + 1
    assert run_tests.run_failed_again(half, []) == run_tests.TESTS_FAILED
