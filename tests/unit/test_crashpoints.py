"""A crash point kills the process at the named hit, and costs nothing otherwise."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from dejaq.crashpoints import crash_at

CODE = """
from dejaq.crashpoints import crash_at
for n in range(3):
    crash_at('here')
    crash_at('there')
    print(n, flush=True)
"""


@pytest.mark.parametrize(
    ("point", "printed"), [("here:1", ""), ("here:3", "0\n1\n"), ("there", ""), ("there:2", "0\n")]
)
def test_the_process_dies_at_the_named_hit(point: str, printed: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env={**os.environ, "DEJAQ_CRASH_AT": point},
        capture_output=True,
        text=True,
    )
    assert done.returncode == -signal.SIGKILL
    assert done.stdout == printed


def test_without_the_variable_nothing_happens() -> None:
    crash_at("")
    crash_at("here")
