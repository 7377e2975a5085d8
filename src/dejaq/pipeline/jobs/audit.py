"""The conservation audit: every message that was created is deleted, cancelled, dead-lettered or on the timeline.

The lake says what became of each message; a snapshot of the live timeline says what is there. The system may go on
meanwhile: what was created, or ended, while the snapshot was taken may be in it or not. Only the rest is judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from dejaq.pipeline.intake.messages import OUTCOMES, PENDING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

LOST, DOUBLED, EARLY, UNEXPLAINED = "lost", "doubled", "early", "unexplained"


def counted(messages: DataFrame) -> DataFrame:
    """The messages of each file and topic by what became of them; sums of these are exact.

    `strays` are rows without a creation, `early` those that were delivered before their time.
    """
    outcome, born = F.col("outcome"), F.col("born").isNotNull()
    return messages.groupBy("file", "topic").agg(
        F.count(F.when(born, 1)).alias("created"),
        *(F.count(F.when(outcome == name, 1)).alias(name) for name in (*OUTCOMES, PENDING)),
        F.count(F.when(~born, 1)).alias("strays"),
        F.count(F.when(F.col("delivered") & is_early(), 1)).alias("early"),
    )


def counted_releases(releases: DataFrame) -> DataFrame:
    """How many deliveries of each file and topic ended in a release and were before their time."""
    return releases.where(is_early()).groupBy("file", "topic").agg(F.count(F.lit(1)).alias("early"))


def is_early() -> Column:
    """Whether user code got a message before its time."""
    return F.col("lateness_ms") < 0


def balance(counts: Iterable[Mapping[str, Any]], elsewhere: Mapping[str, int]) -> list[dict[str, Any]]:
    """For each topic: created, and what became of it. `difference` is what the journal does not account for."""
    names = ("created", *OUTCOMES, PENDING)
    summed: dict[str, Counter[str]] = {}
    for row in counts:
        summed.setdefault(row["topic"], Counter()).update({name: row[name] for name in names})
    rows = []
    for topic, total in sorted(summed.items()):
        total[PENDING] -= elsewhere.get(topic, 0)
        accounted = sum(total[name] for name in names[1:])
        rows.append(
            {"topic": topic, **{name: total[name] for name in names}, "difference": total["created"] - accounted}
        )
    return rows


def doubtful(pending: DataFrame, strays: DataFrame) -> DataFrame:
    """The ids (topic, id) of which more must be known: all others are accounted for by any row that they may have.

    An id is at fault only if two of its messages are pending at once, or if it has events of no message.
    """
    known = pending.where(F.col("born").isNotNull())
    twice = known.groupBy("topic", "id").agg(F.count(F.lit(1)).alias("open")).where("open > 1")
    return twice.select("topic", "id").unionByName(strays.select("topic", "id")).distinct()


def elsewhere(messages: DataFrame) -> DataFrame:
    """For each topic: the rows that are open in one origin's history because another origin continues the message.

    Brokers that share a store have a history each: one created the message, another may have leased and ended it.
    """
    born, pending = F.col("born").isNotNull(), F.col("outcome") == PENDING
    both = messages.groupBy("topic", "id").agg(
        F.count(F.when(born & pending, 1)).alias("here"),
        F.count(F.when(born, 1)).alias("lives"),
        F.count(F.when(~born & ~pending, 1)).alias("ended"),
        F.count(F.when(~born & pending, 1)).alias("open"),
    )
    both = both.where((F.col("lives") > 0) & (F.col("ended") + F.col("open") > 0))
    return both.groupBy("topic").agg(F.sum(F.least("here", "ended") + F.col("open")).alias("elsewhere"))


def _finding(rows: DataFrame, finding: str | Column, detail: Column) -> DataFrame:
    named = F.lit(finding) if isinstance(finding, str) else finding
    return rows.select("topic", "id", named.alias("finding"), detail.alias("detail"))


def _time(column: str) -> Column:
    return F.date_format(F.timestamp_millis(F.col(column)), "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'")


def early(messages: DataFrame, releases: DataFrame) -> DataFrame:
    """Deliveries before their time."""
    columns = ("topic", "id", "lateness_ms")
    handed = messages.where("delivered").select(*columns).unionByName(releases.select(*columns))
    detail = F.format_string("handed over %.3f ms before its time", -F.col("lateness_ms"))
    return _finding(handed.where(is_early()), EARLY, detail)


def contradictions(messages: DataFrame) -> DataFrame:
    """What cannot have happened by the journal's own account: two of one id at once, and events of no message.

    `messages` has all rows of each id that it has.
    """
    born = F.col("born").isNotNull()
    outcomes = F.array(*map(F.lit, OUTCOMES))
    by_id = messages.groupBy("topic", "id").agg(
        F.count(F.when(born, 1)).alias("lives"),
        F.count(F.when(born & (F.col("outcome") == PENDING), 1)).alias("pending"),
        F.count(F.when(~born & (F.col("outcome") != PENDING), 1)).alias("stray_endings"),
        F.count(F.when(~born & (F.col("outcome") == PENDING), 1)).alias("strays"),
        # As a number: numbers are collected without sorting the messages.
        F.max(F.when(~born, F.array_position(outcomes, F.col("outcome")))).alias("place"),
    )
    by_id = by_id.withColumn("ending", F.when(F.col("place") > 0, F.element_at(outcomes, F.col("place").cast("int"))))
    # If a history continues under another origin, as after restoring a backup, messages that began here end there.
    open_here = F.col("pending") - F.col("stray_endings")
    twice = (open_here > 1) | ((F.col("stray_endings") > F.col("pending")) & (F.col("lives") > 0))
    detail = F.when(
        open_here > 1, F.format_string("created %d times and not ended between", F.col("pending"))
    ).otherwise(F.format_string("%s once more after its end", F.col("ending")))
    unknown = (F.col("lives") == 0) & (F.col("stray_endings") + F.col("strays") > 0)
    about = F.when(F.col("ending").isNotNull(), F.format_string("%s, but never created", F.col("ending"))).otherwise(
        F.lit("changed, but never created")
    )
    # One of the two: what is found twice began once.
    return _finding(
        by_id.where(twice | unknown),
        F.when(twice, DOUBLED).otherwise(UNEXPLAINED),
        F.when(twice, detail).otherwise(about),
    )


def against(messages: DataFrame, snapshot: DataFrame, begun_ms: int, ended_ms: int) -> DataFrame:
    """What differs from a snapshot: the topic and id of everything on the timeline, read between two times.

    Whether an id differs depends on the rows that are pending, that ended since `begun_ms`, or that have no creation.
    `detail` names what is known of earlier rows.
    """
    finished, created = F.col("finished_ms"), F.col("created_ms")
    born = F.col("born").isNotNull()
    stands = born & (created < begun_ms) & (finished.isNull() | (finished > ended_ms))
    may_stand = (created.isNull() | (created <= ended_ms)) & (finished.isNull() | (finished >= begun_ms))
    by_id = messages.groupBy("topic", "id").agg(
        F.count(F.when(stands, 1)).alias("stands"),
        F.count(F.when(may_stand, 1)).alias("may_stand"),
        F.count(F.when(~born & finished.isNotNull() & (finished <= ended_ms), 1)).alias("stray_endings"),
        F.max_by("outcome", "finished_ms").alias("ending"),
        F.max("finished_ms").alias("finished_ms"),
        F.max("created_ms").alias("created_ms"),
    )
    there = snapshot.groupBy("topic", "id").agg(F.count(F.lit(1)).alias("there"))
    joined = by_id.join(there, ["topic", "id"], "full_outer").fillna(
        0, subset=["stands", "may_stand", "stray_endings", "there"]
    )
    lost = joined.where((F.col("there") == 0) & (F.col("stands") > F.col("stray_endings")))
    gone = F.format_string("created %s, never ended, and not on the timeline", _time("created_ms"))
    extra = joined.where((F.col("there") > 0) & (F.col("may_stand") == 0))
    why = F.when(
        F.col("finished_ms").isNotNull(),
        F.format_string("on the timeline, though %s %s", F.col("ending"), _time("finished_ms")),
    ).otherwise(F.lit("on the timeline, but never created"))
    several = joined.where(F.col("there") > 1)
    times = F.format_string("%d times on the timeline", F.col("there"))
    return (
        _finding(lost, LOST, gone)
        .unionByName(_finding(extra, UNEXPLAINED, why))
        .unionByName(_finding(several, DOUBLED, times))
    )
