"""Hand-overs: each time user code got a message. One ends in a delete, in a rejection or in a release.

The first two are the message's end and stand in its row; each release has a row of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from dejaq.pipeline.intake.events import day_of, handed_ms
from dejaq.pipeline.intake.messages import is_release, lives

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HAND_OVER = ("topic", "id", "handed_us", "lateness_ms")


def given_back(parts: DataFrame) -> DataFrame:
    """The releases among parts of messages, with how late each hand-over was."""
    released = lives(parts).where(is_release() & F.col("handed_us").isNotNull())
    return released.select(
        "store",
        "topic",
        "id",
        "born",
        "order",
        F.col("actor").alias("consumer"),
        "lease",
        F.when(F.col("lateness_ms").isNotNull(), F.col("held_due_ms")).alias("due_ms"),
        "handed_us",
        "lateness_ms",
        F.col("at_ms").alias("released_ms"),
        day_of(handed_ms()).alias("day"),
    )


def hand_overs(messages: DataFrame, releases: DataFrame) -> DataFrame:
    """Every hand-over of the lake: topic, id, handed_us, lateness_ms."""
    return messages.where("delivered").select(*HAND_OVER).unionByName(releases.select(*HAND_OVER))
