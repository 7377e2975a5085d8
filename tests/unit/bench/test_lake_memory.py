"""The memory of a process counts once, also while it begins another one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from bench import lake

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="processes are read from /proc")


def test_a_process_that_has_just_been_forked_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    child = os.fork()
    if not child:
        signal.pause()
        os._exit(0)
    try:
        monkeypatch.setattr(lake, "BEGINNING_S", 3_600.0)
        assert lake._is_beginning(child)
        # A worker that runs its parent's program is counted.
        monkeypatch.setattr(lake, "BEGINNING_S", 0.0)
        assert not lake._is_beginning(child)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert lake._is_beginning(child), "it has ended"


def test_a_process_with_a_program_of_its_own_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake, "BEGINNING_S", 3_600.0)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert not lake._is_beginning(process.pid)
        process.communicate(b"\n")
