"""The report of a failed test does not fail itself."""

from __future__ import annotations

import ast
import gc
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def many_switches() -> Iterator[None]:
    """Let threads take turns as often as possible, also in the middle of a parse."""

    def collected(phase: str, info: dict[str, int]) -> None:
        for _ in range(50):
            pass

    interval, threshold = sys.getswitchinterval(), gc.get_threshold()
    gc.callbacks.append(collected)
    gc.set_threshold(50)
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)
    gc.set_threshold(*threshold)
    gc.callbacks.remove(collected)


def test_two_threads_parse_at_the_same_time(many_switches: None) -> None:
    """A failed test beside a thread that formats a traceback ended the worker with an INTERNALERROR."""
    source = Path(ast.__file__).read_text(encoding="utf-8")
    errors: list[Exception] = []

    def parse(depth: int) -> None:
        if depth:
            return parse(depth - 1)
        try:
            for _ in range(5):
                ast.parse(source)
        except SystemError as error:
            errors.append(error)

    threads = [threading.Thread(target=parse, args=(20 * number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
