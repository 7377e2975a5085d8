"""What Spark threw, as one sentence from the driver."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from dejaq.errors import PipelineError


@contextmanager
def explained(doing: str = "Spark could not do it") -> Iterator[None]:
    """Turn an exception of Spark or of the JVM into a PipelineError: what could not be done, and why."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise PipelineError(f"{doing}: {sentence_of(error)}") from error


def sentence_of(error: Exception) -> str:
    """The innermost cause, in one line."""
    lines = str(error).splitlines()
    causes = [line.strip().removeprefix("Caused by: ") for line in lines if line.strip().startswith("Caused by: ")]
    told = _python_cause(lines) or (
        causes[-1] if causes else next((line.strip() for line in lines if line.strip()), "")
    )
    kind, colon, rest = (told or type(error).__name__).partition(": ")
    # A class name helps nobody; the sentence behind it does.
    return (rest if colon and " " not in kind and rest else told or kind)[:400]


def _python_cause(lines: list[str]) -> str:
    """The exception that ends the last traceback of a Python worker; empty where there is none."""
    starts = [number for number, line in enumerate(lines) if _TRACEBACK in line]
    if not starts:
        return ""
    # The traceback's own lines are indented, the exception behind them is not.
    found = (line.strip() for line in lines[starts[-1] + 1 :] if line[:1].strip() and _EXCEPTION.match(line))
    return next(found, "")


_TRACEBACK = "Traceback (most recent call last)"
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(: |$)")
