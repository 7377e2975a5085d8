"""A client of one bench in a process of its own, for work that the crew's orders do not know."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Callable, Coroutine
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from bench.harness.figures import Figures

Work = Callable[..., Coroutine[Any, Any, Figures]]


def apart(work: Work, *arguments: object) -> Figures:
    """Do asynchronous work in a new process and give its figures; what it raises is raised here."""
    with ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_run, work, arguments).result()


def _run(work: Work, arguments: tuple[object, ...]) -> Figures:
    return asyncio.run(work(*arguments))
