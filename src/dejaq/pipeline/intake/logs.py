"""Log topics in the lake: their messages by offset, exactly once, in the same commits as everything else.

The commit names the next offset of each bucket together with the files, so the messages and the position change in one
step. A run that was killed before its commit has changed nothing, and the next one reads the same offsets again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from dejaq.pipeline.intake.events import day_of
from dejaq.pipeline.lake.lake import Lake
from dejaq.pipeline.spark.failures import explained
from pyspark_dejaq.logs.reading import LogPlaces
from pyspark_dejaq.options import Options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MESSAGES_MAX_DEFAULT = 5_000_000
TABLE = "log_messages"


@dataclass(frozen=True, slots=True)
class KeptMessages:
    """Messages of a log that are part of the lake now."""

    topic: str
    version: int
    messages: int
    seconds: float


def keep_log(
    lake: Lake, url: str, topic: str, *, messages_max: int = MESSAGES_MAX_DEFAULT, allow_loss: bool = False
) -> Iterator[KeptMessages]:
    """Add what is new in a log, about so many messages in each commit; yields one result after each.

    Raises where retention has removed messages that the lake does not have, unless `allow_loss`.
    """
    given = {"dejaq.url": url, "subscribe": topic, "failOnDataLoss": str(not allow_loss).lower()}
    log = LogPlaces(Options.parse(given))
    with lake.writing(), explained(f"Spark could not add the log {topic} to {lake.files.address}"):
        held = log.now()
        last = {bucket: one.stable for bucket, one in enumerate(held)}
        while True:
            begun = time.monotonic()
            known = lake.head.log_offsets.get(topic)
            first = {bucket: held[bucket].start if known is None else known.get(bucket, 0) for bucket in last}
            end = _portion(first, last, messages_max)
            count = sum(end[bucket] - first[bucket] for bucket in end)
            if count <= 0:
                return
            rows = _rows(lake, given, first, end)
            added = lake.write(TABLE, rows, lake.new_batch())
            offsets = {**lake.head.log_offsets, topic: end}
            lake.commit(replace(lake.head.with_table(TABLE, added=added), log_offsets=offsets))
            yield KeptMessages(topic, lake.head.version, count, time.monotonic() - begun)


def _portion(first: Mapping[int, int], last: Mapping[int, int], most: int) -> dict[int, int]:
    """The end of the next portion: of each bucket the share that its waiting messages have."""
    waiting = {bucket: max(0, last[bucket] - first[bucket]) for bucket in last}
    total = sum(waiting.values())
    if total <= most:
        return {bucket: max(first[bucket], last[bucket]) for bucket in last}
    return {bucket: first[bucket] + -(-count * most // total) for bucket, count in waiting.items()}


def _rows(lake: Lake, given: Mapping[str, str], first: Mapping[int, int], end: Mapping[int, int]) -> DataFrame:
    read = lake.spark.read.format("dejaq").options(**given)
    places = {"startingOffsets": first, "endingOffsets": end}
    for name, offsets in places.items():
        read = read.option(name, json.dumps({str(bucket): offset for bucket, offset in offsets.items()}))
    messages = read.load().withColumn("ts_ms", F.unix_millis("timestamp"))
    return messages.withColumn("day", day_of(F.col("ts_ms"))).drop("timestamp")
