"""R19: the test of every fixed defect fails when the defect is planted."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.regressions.bugs import ROOT, areas, bugs_of, environment

EVERY_BUG = [f"{area}:{name}" for area in areas() for name in bugs_of(area)]
TESTS_FAILED = 1


@pytest.mark.parametrize("name", EVERY_BUG)
def test_r19_the_test_of_a_fixed_defect_finds_it_when_it_is_planted_again(name: str) -> None:
    area, _, bug = name.partition(":")
    test = bugs_of(area)[bug].test
    # The bug is planted before pytest can rewrite the assertions of its plugin `dejaq`; pytest warns about that.
    quiet = ["-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"]
    command = [sys.executable, "-m", "pytest", "-q", "-x", *quiet, "-p", "no:cacheprovider", "-p", "no:randomly", test]
    result = subprocess.run(
        command, cwd=ROOT, env=environment(name), capture_output=True, text=True, check=False, timeout=300
    )
    assert result.returncode == TESTS_FAILED, f"{test} did not fail with the bug planted:\n{result.stdout[-4000:]}"
    assert " failed" in result.stdout.splitlines()[-1], result.stdout[-4000:]
    assert "error" not in result.stdout.splitlines()[-1], result.stdout[-4000:]
