"""Messages: one row per message, as the sum of its events.

Events are parts that add up to a message, and a message is itself a part to which further events are added, with the
same result as adding up all of them at once. So a batch needs the rows of the messages that are still pending, and none
of their earlier events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from dejaq.pipeline.intake.events import KEY, TOPIC, day_of, handed_ms, order_of
from dejaq.pipeline.intake.segments import ROW_BITS, day_name
from dejaq.pipeline.lake.tables import MESSAGES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PENDING, DROPPED = "pending", "dropped"
# How an event of its own ends a message; the end of its topic does so without one.
ENDINGS = ("deleted", "cancelled", "dead_lettered")
OUTCOMES = (*ENDINGS, DROPPED)
TOPIC_DROPPED = "topic_dropped"
OPEN, DONE = "open", "done"
# What stands for "no lease" while parts are added up, since a null means "as before".
_NO_LEASE = -1
_CODES = {
    "created": 1,
    "leased": 2,
    "extended": 3,
    "released": 4,
    "expired": 5,
    "moved": 6,
    "edited": 7,
    "cancelled": 8,
    "deleted": 9,
    "dead_lettered": 10,
    "recalled": 11,
}
# What happened to a message so far, as one part.
_SO_FAR = 0
_HOLDING: tuple[str | int, ...] = ("leased", "extended", "expired", "released", "recalled", "moved", "edited", _SO_FAR)
_DAY_MS, _HOUR_MS = 86_400_000, 3_600_000
# Pending messages that are due within so long of the newest event lie by the hour.
_HOURS_WITHIN_MS = _DAY_MS // 2
_COUNTS = {
    "moves": "moved",
    "edits": "edited",
    "extensions": "extended",
    "expiries": "expired",
    "releases": "released",
    "recalls": "recalled",
}


def from_events(events: DataFrame) -> DataFrame:
    """Events as parts of messages. Few and narrow columns, since these rows are sorted by message."""
    kind = F.col("kind")
    return events.where(kind != TOPIC_DROPPED).select(
        *KEY,
        order_of().alias("order"),
        _code(kind).alias("kind"),
        "at_ms",
        F.when(kind.isin("created", "released"), F.col("actor")).alias("actor"),
        "lease",
        "expires_ms",
        "ts_ms",
        "priority",
        "body_bytes",
        "body_crc",
        F.when(F.col("handed_us") > 0, F.col("handed_us")).alias("handed_us"),
        F.lit(None).cast(_before()).alias("before"),
    )


def from_rows(messages: DataFrame) -> DataFrame:
    """Messages that are pending, as parts of what they become."""
    return messages.select(
        *KEY,
        F.col("last_order").alias("order"),
        F.lit(_SO_FAR).cast("int").alias("kind"),
        F.col("last_ms").alias("at_ms"),
        F.col("owner").alias("actor"),
        "lease",
        F.col("lease_until_ms").alias("expires_ms"),
        F.col("scheduled_ms").alias("ts_ms"),
        "priority",
        "body_bytes",
        "body_crc",
        "handed_us",
        F.struct(*(field.name for field in _before())).alias("before"),
    )


def lives(parts: DataFrame) -> DataFrame:
    """The same parts, each knowing which life of its id it belongs to, and how late its hand-over was.

    A created event begins a life, and an ending ends it. What comes behind an ending and before the next beginning
    belongs to neither, and stands alone without a birth; an ending among that ends it too. So the lives of an id follow
    one another, and none reaches into the next.
    """
    history = Window.partitionBy(*KEY).orderBy("order")
    so_far = history.rowsBetween(Window.unboundedPreceding, 0)
    earlier = history.rowsBetween(Window.unboundedPreceding, -1)
    order, begins = F.col("order"), _is("created", _SO_FAR)

    def latest(value: Column) -> Column:
        return F.last(value, ignorenulls=True).over(so_far)

    born = F.when(_is("created"), F.shiftright(order, ROW_BITS)).otherwise(F.col("before.born"))
    known = parts.withColumns(
        {
            "born": latest(born),
            "owner": latest(F.when(begins, F.col("actor"))),
            "begun": latest(F.when(begins, order)),
            "ended": F.max(F.when(_is(*ENDINGS), order)).over(earlier),
            "held_lease": latest(F.when(_is("leased", _SO_FAR), F.col("lease"))),
            "held_due_ms": latest(F.when(_is("leased"), F.col("ts_ms")).otherwise(F.col("before.lease_due_ms"))),
        }
    )
    alone = F.coalesce(F.col("ended") > F.coalesce(F.col("begun"), F.lit(-1)), F.lit(False))
    matches = ~_is(_SO_FAR) & (F.col("lease") == F.col("held_lease"))
    # Whole microseconds first: a double of the whole time would have lost them.
    late = F.when(matches, (F.col("handed_us") - F.col("held_due_ms") * 1000) / 1000)
    return known.withColumns(
        {
            "born": F.when(~alone, F.col("born")),
            "owner": F.when(~alone, F.col("owner")),
            "lateness_ms": late,
            # Distinguishes single events after one ending from those after another ending.
            "behind": F.when(alone | F.col("born").isNull(), F.col("ended")),
        }
    )


def add_up(parts: DataFrame) -> DataFrame:
    """The messages that the parts of `lives` add up to."""
    at, order = F.col("at_ms"), F.col("order")

    def latest(kinds: tuple[str | int, ...], value: Column) -> Column:
        found = F.when(_is(*kinds), value)
        return F.max_by(found, F.when(found.isNotNull(), order))

    def total(value: Column, before: str) -> Column:
        return F.sum(F.coalesce(F.col(f"before.{before}"), F.lit(0)) + value).cast("int")

    def counted(kind: str) -> Column:
        return F.when(_is(kind), 1).otherwise(0)

    given, handed = ("created", "edited", _SO_FAR), F.col("handed_us")
    # A lost lease leaves its message where it ended, or, with a back-off, at a time of its own.
    put_back = _is("expired") & F.col("ts_ms").isNotNull()
    free = _is("released", "recalled", "moved", "edited") | put_back
    lease_until = F.when(free, _NO_LEASE).otherwise(F.col("expires_ms"))
    summed = parts.groupBy(*KEY, "born", "owner", "behind").agg(
        latest(given, F.col("priority")).alias("priority"),
        F.max(F.when(_is("created"), at).otherwise(F.col("before.created_ms"))).alias("created_ms"),
        latest(("created", "moved", "edited", "released", "expired", _SO_FAR), F.col("ts_ms")).alias("scheduled_ms"),
        F.min(F.when(_is("leased"), at).otherwise(F.col("before.first_lease_ms"))).alias("first_lease_ms"),
        total(counted("leased") - counted("recalled"), "attempts").alias("attempts"),
        F.max(F.when(_is(*ENDINGS), F.col("kind"))).alias("ending"),
        F.max(F.when(_is(*ENDINGS), at)).alias("finished_ms"),
        F.max_by(handed, F.when(handed.isNotNull(), order)).alias("handed_us"),
        # Together with the hand-over: one that cannot be matched with its lease has no lateness, not an older one.
        F.max_by(
            F.when(_is(_SO_FAR), F.col("before.lateness_ms")).otherwise(F.col("lateness_ms")),
            F.when(handed.isNotNull(), order),
        ).alias("lateness_ms"),
        F.max(_is("deleted", "dead_lettered") & handed.isNotNull()).alias("delivered"),
        latest(given, F.col("body_bytes")).alias("body_bytes"),
        latest(given, F.col("body_crc")).alias("body_crc"),
        *(total(counted(kind), name).alias(name) for name, kind in _COUNTS.items()),
        latest(("leased", _SO_FAR), F.col("lease")).alias("lease"),
        F.max_by(
            F.when(_is("leased"), F.col("ts_ms")).otherwise(F.col("before.lease_due_ms")),
            F.when(_is("leased", _SO_FAR), order),
        ).alias("lease_due_ms"),
        latest(_HOLDING, lease_until).alias("lease_until_ms"),
        F.max(at).alias("last_ms"),
        F.max(order).alias("last_order"),
        F.min(_first("first_ms", at)).alias("first_ms"),
        F.min(_first("first_order", order)).alias("first_order"),
    )
    unborn = F.col("born").isNull()
    return summed.withColumns(
        {
            "first_ms": F.when(unborn, F.col("first_ms")),
            "first_order": F.when(unborn, F.col("first_order")),
            "outcome": _outcome(F.col("ending")),
            "lease_until_ms": F.when(F.col("lease_until_ms") != _NO_LEASE, F.col("lease_until_ms")),
        }
    )


def drops_of(events: DataFrame) -> DataFrame:
    """When each topic was deleted: topic, store, and `drops`, the places in history and the times, in order."""
    drop = F.struct(order_of().alias("order"), F.col("at_ms"))
    dropped = events.where(F.col("kind") == TOPIC_DROPPED)
    return dropped.groupBy(*TOPIC).agg(F.sort_array(F.collect_list(drop)).alias("drops"))


def end_with_topics(messages: DataFrame, drops: DataFrame) -> DataFrame:
    """The messages, those still pending when their topic was deleted being dropped with it."""
    later = F.filter("drops", lambda drop: drop["order"] > F.col("last_order"))
    drop = F.when((F.col("outcome") == PENDING) & F.col("born").isNotNull(), F.get(later, F.lit(0)))
    known = messages.join(F.broadcast(drops), list(TOPIC), "left").withColumn("drop", drop)
    return known.withColumns(
        {
            "outcome": F.when(F.col("drop").isNotNull(), DROPPED).otherwise(F.col("outcome")),
            "finished_ms": F.coalesce("drop.at_ms", "finished_ms"),
            "last_order": F.coalesce("drop.order", "last_order"),
        }
    ).drop("drop", "drops")


def placed(messages: DataFrame, now_ms: int) -> DataFrame:
    """Messages with the partition they belong to.

    Finished ones never change again and lie by the day they were delivered, or ended undelivered. Pending ones lie by
    when they are due, since consumers change what is due now and leave the future alone: by the hour around `now_ms`,
    the time of the newest event, and by longer periods the further they are from it. So a batch rewrites the rows of
    the hours that it concerns, however many others are pending.
    """
    done = F.col("outcome") != PENDING
    return messages.withColumns(
        {
            "state": F.when(done, DONE).otherwise(OPEN),
            "day": F.when(F.col("delivered"), day_of(handed_ms()))
            .when(done, day_of(F.col("finished_ms")))
            .otherwise(_due_period(now_ms)),
        }
    )


def _due_period(now_ms: int) -> Column:
    """The hour, day, month or year in which a message is due.

    Texts are compared, because a number would be part of the code that Spark compiles, and each batch has another.
    """
    due = F.coalesce(F.col("scheduled_ms"), F.col("last_ms"))
    day = day_of(due)
    hour = F.concat(
        day, F.lit("T"), F.lpad(F.floor(F.pmod(due, F.lit(_DAY_MS)) / F.lit(_HOUR_MS)).cast("string"), 2, "0")
    )
    first, last = _hour_name(now_ms - _HOURS_WITHIN_MS), _hour_name(now_ms + _HOURS_WITHIN_MS)
    return (
        F.when(hour.between(F.lit(first), F.lit(last)), hour)
        .when(day < F.lit(day_name(now_ms // _DAY_MS + 32)), day)
        .when(day < F.lit(day_name(now_ms // _DAY_MS + 800)), F.substring(day, 1, 7))
        .otherwise(F.substring(day, 1, 4))
    )


def _hour_name(ms: int) -> str:
    return f"{day_name(ms // _DAY_MS)}T{ms % _DAY_MS // _HOUR_MS:02d}"


def _before() -> StructType:
    """What a pending message keeps that none of the columns of an event can carry."""
    names = ("born", "created_ms", "first_lease_ms", "attempts", "lateness_ms", "lease_due_ms", *_COUNTS)
    names += ("first_ms", "first_order")
    return StructType([MESSAGES[name] for name in names])


def _first(before: str, here: Column) -> Column:
    """Where a part begins; 0 where an earlier release did not say."""
    return F.when(_is(_SO_FAR), F.coalesce(f"before.{before}", F.lit(0))).otherwise(here)


def _code(kind: Column) -> Column:
    """A number for each kind of event: numbers are summed without sorting, text is not."""
    first, *rest = _CODES
    code = F.when(kind == first, _CODES[first])
    for name in rest:
        code = code.when(kind == name, _CODES[name])
    return code


def _is(*kinds: str | int) -> Column:
    codes = [_CODES[kind] if isinstance(kind, str) else kind for kind in kinds]
    return F.col("kind") == codes[0] if len(codes) == 1 else F.col("kind").isin(*codes)


def is_release() -> Column:
    """Whether a part is a release of the message."""
    return _is("released")


def _outcome(code: Column) -> Column:
    """The name of what ended a life."""
    name = F.when(code == _CODES[ENDINGS[0]], ENDINGS[0])
    for outcome in ENDINGS[1:]:
        name = name.when(code == _CODES[outcome], outcome)
    return name.otherwise(PENDING)


def fold(parts: DataFrame, drops: DataFrame | None = None, *, now_ms: int) -> DataFrame:
    """The messages that events, and pending messages before them, add up to, with the partition each belongs to."""
    summed = add_up(lives(parts))
    return placed(summed if drops is None else end_with_topics(summed, drops), now_ms)
