"""Small results as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dejaq.pipeline.spark.failures import explained

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Rows = list[dict[str, Any]]
# What is listed one by one; the numbers of all are exact.
LISTED_MAX = 10_000


def rows_of(frame: DataFrame, limit: int = 0) -> Rows:
    """The rows of a small result."""
    with explained():
        return [row.asDict() for row in (frame.limit(limit) if limit else frame).collect()]


def of_topics(frame: DataFrame, topics: Sequence[str]) -> DataFrame:
    """The rows of some topics, or all."""
    return frame.where(frame["topic"].isin(*topics)) if topics else frame
