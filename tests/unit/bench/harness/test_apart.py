"""Work in a process of its own."""

from __future__ import annotations

import asyncio
import os

import pytest
from bench.harness.apart import ApartFailed, apart


async def own_pid(number: int) -> tuple[int, int]:
    return number, os.getpid()


async def fail() -> None:
    raise ValueError("it did not work")


async def never() -> None:
    await asyncio.Event().wait()


async def end() -> None:
    os._exit(3)


def test_the_result_comes_from_another_process() -> None:
    number, pid = apart(own_pid, 7)
    assert number == 7
    assert pid != os.getpid()


def test_a_failure_is_raised_with_its_traceback() -> None:
    with pytest.raises(ApartFailed, match=r"(?s)Traceback.*it did not work"):
        apart(fail)


def test_work_that_does_not_end_is_killed() -> None:
    with pytest.raises(TimeoutError, match="never did not end within 0 s"):
        apart(never, seconds_max=0.1)


def test_a_process_that_ends_without_an_answer_is_a_failure() -> None:
    with pytest.raises(ApartFailed, match="ended without an answer"):
        apart(end)
