"""Settings and fixtures that apply to every test."""

import ast
import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from functools import wraps
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from dejaq.testing.waiting import PATIENCE
from tests.blocking import limited_blocks
from tests.marking import mark

# A machine that runs other tests at the same time is sometimes slow. That is not a fault of the code under test.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")
# The time limits of waits suit an idle machine. A limit that is too long costs nothing while a test passes.
os.environ.setdefault(PATIENCE, "4")
# Tests start hundreds of Python processes, and each would compile every module again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# A shell starts background commands with SIGINT ignored, and the processes that a test starts would inherit this.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Two threads that parse at the same time disturb each other in CPython 3.11: one gets a SystemError ("AST constructor
# recursion depth mismatch"). pytest parses the source of a test that failed, and `traceback` that of each line.
_parse, _parsing = ast.parse, threading.RLock()


@wraps(_parse)
def _parse_alone(*arguments: Any, **options: Any) -> Any:
    with _parsing:
        return _parse(*arguments, **options)


ast.parse = _parse_alone


@pytest.fixture(autouse=True)
def _small_heap() -> Iterator[None]:
    """Exclude objects of earlier tests from garbage collection.

    A store collects garbage when it closes, and model tests close hundreds of stores. With the objects of all earlier
    tests in the process, each collection took half a second.
    """
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _responsive_brokers() -> Iterator[None]:
    """Fail a test when a broker in this process blocked its event loop. `BrokerProcess` checks those in others."""
    with limited_blocks() as too_long:
        yield
    assert not too_long, f"the event loop of a broker was blocked: {too_long[0]}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test that needs a server or much time."""
    for item in items:
        if isinstance(item, pytest.Function):
            mark(item)
