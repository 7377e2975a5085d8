"""Messages: one row a message, as the sum of its events.

An event is written as a message row to which only that event has happened; rows of one message then add up to one, and
adding further events to a row gives the same as adding up all of them at once. So a batch needs the rows of the
messages that are still pending, and none of their earlier events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from dejaq.pipeline.events import KEY, day_of, handed_ms, order_of
from dejaq.pipeline.tables import MESSAGES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PENDING, OUTCOMES = "pending", ("deleted", "cancelled", "dead_lettered")
OPEN, DONE = "open", "done"
# What stands for "no lease" while rows are added up, since a null means "as before".
_NO_LEASE = -1
_DAY_MS = 86_400_000
_COUNTS = {
    "moves": "moved",
    "edits": "edited",
    "extensions": "extended",
    "expiries": "expired",
    "releases": "released",
    "recalls": "recalled",
}


def from_events(events: DataFrame) -> DataFrame:
    """Each event as the row of a message to which only that has happened."""
    kind, at = F.col("kind"), F.col("at_ms")

    def when(kinds: tuple[str, ...], value: Column) -> Column:
        return F.when(kind.isin(*kinds), value)

    return events.select(
        *KEY,
        when(("created",), F.col("sequence")).alias("born"),
        when(("created",), F.col("actor")).alias("owner"),
        when(("created", "edited"), F.col("priority")).alias("priority"),
        when(("created",), at).alias("created_ms"),
        when(("created", "moved", "edited", "released"), F.col("ts_ms")).alias("scheduled_ms"),
        when(("leased",), at).alias("first_lease_ms"),
        F.when(kind == "leased", 1).when(kind == "recalled", -1).otherwise(0).alias("attempts"),
        _outcome_code(kind).alias("ending"),
        when(OUTCOMES, at).alias("finished_ms"),
        F.when(F.col("handed_us") > 0, F.col("handed_us")).alias("handed_us"),
        F.lit(None).cast("double").alias("lateness_ms"),
        ((kind == "deleted") & (F.col("handed_us") > 0)).alias("delivered"),
        when(("created", "edited"), F.col("body_bytes")).alias("body_bytes"),
        when(("created", "edited"), F.col("body_crc")).alias("body_crc"),
        *(F.when(kind == name, 1).otherwise(0).alias(count) for count, name in _COUNTS.items()),
        when(("leased",), F.col("lease")).alias("lease"),
        when(("leased",), F.col("ts_ms")).alias("lease_due_ms"),
        F.when(kind.isin("leased", "extended", "expired"), F.col("expires_ms"))
        .when(kind.isin("released", "recalled", "moved", "edited"), _NO_LEASE)
        .alias("lease_until_ms"),
        at.alias("last_ms"),
        order_of().alias("last_order"),
        # Only events have these; they say which lease a hand-over belongs to and who reported it.
        F.col("lease").alias("event_lease"),
        F.col("actor"),
        kind,
    )


def from_rows(messages: DataFrame) -> DataFrame:
    """Rows of messages that are pending, to be added to."""
    return messages.select(
        *KEY,
        *(name for name in MESSAGES.fieldNames() if name not in (*KEY, "outcome")),
        F.lit(None).cast("int").alias("ending"),
        F.lit(None).cast("long").alias("event_lease"),
        F.lit(None).cast("string").alias("actor"),
        F.lit("state").alias("kind"),
    )


def lives(rows: DataFrame) -> DataFrame:
    """The same rows, each knowing which life of its id it belongs to and how late its hand-over was.

    A created event begins a life, and an ending ends it. What comes behind an ending and before the next beginning
    belongs to neither, and stands alone without a birth.
    """
    history = Window.partitionBy(*KEY).orderBy("last_order")
    so_far = history.rowsBetween(Window.unboundedPreceding, 0)
    before = history.rowsBetween(Window.unboundedPreceding, -1)
    begins = F.col("born").isNotNull() | (F.col("kind") == "state")

    def latest(value: Column) -> Column:
        return F.last(value, ignorenulls=True).over(so_far)

    known = rows.withColumns(
        {
            "life": latest(F.col("born")),
            "life_owner": latest(F.col("owner")),
            "begun": latest(F.when(begins, F.col("last_order"))),
            "ended": F.max(F.when(F.col("ending").isNotNull(), F.col("last_order"))).over(before),
            "held_lease": latest(F.col("lease")),
            "held_due_ms": latest(F.col("lease_due_ms")),
        }
    )
    alone = F.coalesce(F.col("ended") > F.coalesce(F.col("begun"), F.lit(-1)), F.lit(False))
    matches = (F.col("kind") != "state") & (F.col("event_lease") == F.col("held_lease"))
    # Whole microseconds first: a double of the whole time would have lost them.
    late = F.when(matches, (F.col("handed_us") - F.col("held_due_ms") * 1000) / 1000)
    return known.withColumns(
        {
            "life": F.when(~alone, F.col("life")),
            "life_owner": F.when(~alone, F.col("life_owner")),
            "lateness_ms": F.coalesce(late, F.col("lateness_ms")),
        }
    )


def add_up(rows: DataFrame) -> DataFrame:
    """The messages that rows of `lives` are parts of, with the partition each belongs to."""
    order = F.col("last_order")

    def latest(name: str) -> Column:
        value = F.col(name)
        return F.max_by(value, F.when(value.isNotNull(), order)).alias(name)

    summed = rows.groupBy(*KEY, "life", "life_owner").agg(
        latest("priority"),
        F.max("created_ms").alias("created_ms"),
        latest("scheduled_ms"),
        F.min("first_lease_ms").alias("first_lease_ms"),
        F.sum("attempts").cast("int").alias("attempts"),
        F.max("ending").alias("ending"),
        F.max("finished_ms").alias("finished_ms"),
        latest("handed_us"),
        # Together with the hand-over: one that cannot be matched with its lease has no lateness, not an older one.
        F.max_by("lateness_ms", F.when(F.col("handed_us").isNotNull(), order)).alias("lateness_ms"),
        F.coalesce(F.max("delivered"), F.lit(False)).alias("delivered"),
        latest("body_bytes"),
        latest("body_crc"),
        *(F.sum(name).cast("int").alias(name) for name in _COUNTS),
        latest("lease"),
        latest("lease_due_ms"),
        latest("lease_until_ms"),
        F.max("last_ms").alias("last_ms"),
        F.max("last_order").alias("last_order"),
    )
    named = summed.withColumnsRenamed({"life": "born", "life_owner": "owner"}).withColumns(
        {
            "outcome": _outcome_name(F.col("ending")),
            "lease_until_ms": F.when(F.col("lease_until_ms") != _NO_LEASE, F.col("lease_until_ms")),
        }
    )
    return placed(named)


def placed(messages: DataFrame) -> DataFrame:
    """Messages with the partition they belong to.

    Finished ones never change again and lie by the day they were delivered, or ended undelivered. Pending ones lie by
    the day they are due, since consumers change what is due today and leave the future alone; far ahead, a partition is
    a month or a year.
    """
    done = F.col("outcome") != PENDING
    return messages.withColumns(
        {
            "state": F.when(done, DONE).otherwise(OPEN),
            "day": F.when(F.col("delivered"), day_of(handed_ms()))
            .when(done, day_of(F.col("finished_ms")))
            .otherwise(_due_period()),
        }
    )


def _due_period() -> Column:
    due = F.coalesce(F.col("scheduled_ms"), F.col("last_ms"))
    ahead_days = (due - F.coalesce(F.col("created_ms"), F.col("last_ms"))) / F.lit(_DAY_MS)
    day = day_of(due)
    return F.when(ahead_days < 32, day).when(ahead_days < 800, F.substring(day, 1, 7)).otherwise(F.substring(day, 1, 4))


def _outcome_code(kind: Column) -> Column:
    """A number for what ends a life; numbers are summed without sorting, text is not."""
    code = F.when(kind == OUTCOMES[0], 1)
    for number, name in enumerate(OUTCOMES[1:], start=2):
        code = code.when(kind == name, number)
    return code


def _outcome_name(code: Column) -> Column:
    name = F.when(code == 1, OUTCOMES[0])
    for number, outcome in enumerate(OUTCOMES[1:], start=2):
        name = name.when(code == number, outcome)
    return name.otherwise(PENDING)


def fold(rows: DataFrame) -> DataFrame:
    """The messages that events and earlier rows add up to."""
    return add_up(lives(rows))
