"""A client of one bench in a process of its own, for work that the orders of a crew do not contain."""

from __future__ import annotations

import asyncio
import multiprocessing
import traceback
from collections.abc import Callable, Coroutine
from multiprocessing.connection import Connection
from typing import Any, TypeVar

Result = TypeVar("Result")
Work = Callable[..., Coroutine[Any, Any, Result]]
SECONDS_MAX = 900.0
END_SECONDS = 10.0


class ApartFailed(Exception):
    """The process failed; the message is its traceback."""


def apart(work: Work[Result], *arguments: object, seconds_max: float = SECONDS_MAX) -> Result:
    """Do asynchronous work in a new process and give its result; raises when it fails or takes too long."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(work, arguments, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(seconds_max):
            raise TimeoutError(f"{work.__module__}.{work.__name__} did not end within {seconds_max:.0f} s")
        try:
            succeeded, answer = ours.recv()
        except EOFError:
            raise ApartFailed(f"the process of {work.__module__}.{work.__name__} ended without an answer") from None
        process.join(END_SECONDS)
    finally:
        if process.is_alive():
            process.kill()
        process.join()
        ours.close()
    if not succeeded:
        raise ApartFailed(answer)
    result: Result = answer
    return result


def _run(work: Work[Result], arguments: tuple[object, ...], pipe: Connection) -> None:
    try:
        pipe.send((True, asyncio.run(work(*arguments))))
    except BaseException:  # noqa: BLE001 - the parent raises it; this process ends with it
        pipe.send((False, traceback.format_exc()))
