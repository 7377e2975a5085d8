"""Prepared transactions, each call in a transaction of the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import asyncpg

from dejaq.domain.topic import Topic
from dejaq.errors import Code, DejaqError, Refused, error_of
from dejaq.storage.log.base import Appended, check_bucket
from dejaq.storage.log.prepared import OUTCOME_MS, PreparedState, PreparedTransaction, is_repeat
from dejaq.storage.postgres.connection.database import PostgresLink
from dejaq.storage.postgres.connection.failures import Overtaken
from dejaq.storage.postgres.log import grouping
from dejaq.storage.postgres.log.appending import TimedAppend, append, missing_log
from dejaq.storage.postgres.operations.change import BUCKET_BITS
from dejaq.storage.transactions import LogAppendStep, LogStep, Verdict, first_refused


class RefusedPreparation(DejaqError):
    """A step is refused; what was begun is undone."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(code=verdict.code)
        self.verdict = verdict


async def prepare(
    link: PostgresLink, topic: Topic, name: str, steps: Sequence[LogStep], deadline: int, now: int, check: int
) -> Verdict:
    """Store steps under a name; raises `RefusedPreparation`."""
    if await link.value("lock_log_topic", topic.number) in (None, "deleting"):
        raise missing_log(topic)
    await link.execute("forget_log_prepared", topic.number, now - OUTCOME_MS)
    found = await link.value("lock_log_prepared", topic.number, name)
    known = None if found is None else PreparedTransaction.unpack(found)
    if is_repeat(known, await link.value("count_logs_in_doubt", topic.number), name, check):
        return Verdict(Code.ALREADY_EXISTS)
    places: list[Appended] = []
    for number, step in enumerate(steps):
        if isinstance(step, LogAppendStep):
            places.append(await _append(link, step, number, now))
        else:
            for one in step.commits:
                check_bucket(step.topic, one.bucket)
            codes, offsets = await grouping.decide(link, step.topic, step.group, step.commits)
            refusal = first_refused(codes, number)
            if refusal is not None:
                raise RefusedPreparation(refusal)
            for bucket, (_, claim) in offsets.items():
                await link.execute("hold_log_offset", step.topic.number, step.group, bucket, claim, now, name)
    record = PreparedTransaction.of(name, steps, places, deadline_ms=deadline, now=now, check=check)
    link.changes += 1
    try:
        await link.execute("add_log_prepared", topic.number, name, deadline, record.state, record.pack())
    except asyncpg.UniqueViolationError:
        raise Overtaken("a transaction of the same name was prepared meanwhile") from None
    await link.execute("note_change", link.writer, link.changes)
    return Verdict()


async def _append(link: PostgresLink, step: LogAppendStep, number: int, now: int) -> Appended:
    code = step.refusal(now)
    if code is not None:
        raise RefusedPreparation(Verdict(code, number))
    (answer,) = await append(link, step.topic, [TimedAppend(replace(step.batch, prepared=True), now)])
    if isinstance(answer, Refused):
        raise RefusedPreparation(Verdict(answer.code, number))
    return answer


async def resolve(link: PostgresLink, topic: Topic, name: str, *, commit: bool, now: int) -> PreparedTransaction:
    """Commit or abort a prepared transaction."""
    if await link.value("lock_log_topic", topic.number) in (None, "deleting"):
        raise missing_log(topic)
    return await _resolve(link, topic, name, commit=commit, now=now)


async def abort_all(link: PostgresLink, topic: Topic) -> None:
    """Abort what is in doubt in a log that is being deleted: it holds batches and offsets of other logs too."""
    for one in await in_doubt(link, topic):
        await _resolve(link, topic, one.name, commit=False, now=0)


async def _resolve(link: PostgresLink, topic: Topic, name: str, *, commit: bool, now: int) -> PreparedTransaction:
    found = await link.value("lock_log_prepared", topic.number, name)
    if found is None:
        raise error_of(Code.NOT_FOUND, f"no transaction of {topic.name!r} is prepared under the name {name!r}")
    known = PreparedTransaction.unpack(found)
    record = known.resolved(commit=commit, now=now)
    if record is None:
        return known
    aborted = record.state is PreparedState.ABORTED
    for one in record.batches:
        query = "abort_log_batch" if aborted else "close_log_window"
        await link.execute(query, one.topic << BUCKET_BITS | one.bucket, one.base)
    for offset in record.commits:
        fresh = None if aborted else offset.offset
        await link.execute("free_log_offset", offset.topic, offset.group, offset.bucket, fresh, now)
    link.changes += 1
    await link.execute("put_log_prepared", topic.number, name, record.state, record.pack())
    await link.execute("note_change", link.writer, link.changes)
    return record


async def in_doubt(link: PostgresLink, topic: Topic) -> list[PreparedTransaction]:
    """The transactions that are not resolved."""
    return [PreparedTransaction.unpack(row["record"]) for row in await link.fetch("logs_in_doubt", topic.number)]
