"""The stream that keeps a lake current: a structured-streaming query over the segments of a journal.

The query says when there is something new, and how much. What is in the lake is said by the lake's commit alone, so a
micro-batch that Spark repeats, after a kill at any point, adds nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dejaq.errors import PipelineError
from dejaq.pipeline.lake.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

CHECKPOINT = "_watch"


def follow(lake: Lake, journal: Path, take: Callable[[], None], *, every_s: float) -> StreamingQuery:
    """Start the query; `take` adds what is new, and is called whenever segments have arrived."""

    def arrived(segments: DataFrame, number: int) -> None:
        take()

    segments = (
        lake.spark.readStream.format("dejaq")
        .option("journal", str(journal))
        .option("content", "segments")
        # The lake reports gaps, and fills them when their records arrive.
        .option("failOnDataLoss", "false")
        .load()
    )
    return (
        segments.writeStream.foreachBatch(arrived)
        .queryName("dejaq pipeline watch")
        .option("checkpointLocation", lake.files.path(CHECKPOINT))
        .trigger(processingTime=f"{max(1, round(every_s * 1000))} milliseconds")
        .start()
    )


def check_running(query: StreamingQuery) -> None:
    """Raise the error that ended a query."""
    error = query.exception()
    if error is not None:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        told = next((line for line in lines if "PipelineError" in line or "DejaqError" in line), lines[0])
        raise PipelineError(told.rpartition("PipelineError: ")[2])
