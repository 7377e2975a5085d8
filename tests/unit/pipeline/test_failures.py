"""The exception of Spark, as one sentence."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="the pipeline is not installed")

from dejaq.pipeline.spark.failures import sentence_of

WORKER = """Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times, most recent failure: Lost task 0.0
(TID 5): org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/app/pyspark/worker.py", line 12, in main
    process()
dejaq.errors.Unavailable: UNAVAILABLE: no broker

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/app/pyspark_dejaq/reading.py", line 3, in read
    raise type(error)(told)
dejaq.errors.LimitExceeded: LIMIT_EXCEEDED: 64 snapshots are open; close one or wait until one ends

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:1)
Driver stacktrace:
"""


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (WORKER, "LIMIT_EXCEEDED: 64 snapshots are open; close one or wait until one ends"),
        ("Traceback (most recent call last):\n  File 'x'\nValueError: bad", "bad"),
        ("oops\nCaused by: java.io.IOException: No space left on device\n\tat x", "No space left on device"),
        ("just this", "just this"),
        ("", "ValueError"),
    ],
)
def test_the_cause_is_named(text: str, sentence: str) -> None:
    """P5: `audit --live` printed "Traceback (most recent call last)" and no cause."""
    assert sentence_of(ValueError(text)) == sentence
