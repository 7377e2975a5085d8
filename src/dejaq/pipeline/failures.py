"""What Spark threw, as one sentence from the driver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from dejaq.errors import PipelineError


@contextmanager
def explained() -> Iterator[None]:
    """Turn an exception of Spark or of the JVM into a PipelineError that says what went wrong."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise PipelineError(f"Spark could not do it: {sentence_of(error)}") from error


def sentence_of(error: Exception) -> str:
    """The innermost cause, in one line."""
    lines = [line.strip() for line in str(error).splitlines()]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    told = (causes[-1] if causes else next((line for line in lines if line), "")) or type(error).__name__
    kind, colon, rest = told.partition(": ")
    # A Java class name helps nobody; the sentence behind it does.
    return (rest if colon and " " not in kind and rest else told)[:400]
