"""The cron unit: prepares the occurrences of every schedule shortly before they are due.

A schedule is a message of a hidden topic beside its own, at the time it is to be looked at again. One look takes those
that are due, and in one transaction creates the occurrences and advances the schedules, each on the condition that
it has not changed since. So any broker, after any crash, creates each occurrence once; and since nothing is
leased, a broker that takes over need not wait for anything.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from random import Random

from dejaq.broker.calls.transactions import Transactions
from dejaq.broker.metrics import OCCURRENCES
from dejaq.broker.sessions.broker_context import BrokerContext
from dejaq.domain.batch import CreateBatch
from dejaq.domain.changes import Create, Edit, Edits
from dejaq.domain.context import CallContext
from dejaq.domain.headers import encode_headers
from dejaq.domain.ids import ProducerSession
from dejaq.domain.message import Message
from dejaq.domain.schedules.schedule import (
    NEVER_MS,
    Occurrence,
    OccurrenceOutcome,
    Overlap,
    ScheduleProgress,
    ScheduleSettings,
    advance,
    decode,
    encode,
    wake_ms,
)
from dejaq.domain.topic import Topic, TopicKind, TopicStage
from dejaq.errors import DejaqError
from dejaq.storage.base import Filter
from dejaq.storage.transactions import Step, Transaction

log = logging.getLogger(__name__)

# Owns the messages that schedules are.
OWNER = "cron"
PAGE = 500
# A transaction blocks the event loop, and with it deliveries; one of this size takes some milliseconds.
CHUNK = 100
ROWS_MAX = 1_000
LOOK_SECONDS = 1.0
_CONTEXT = CallContext.internal("cron")
# How far ahead schedules are read into memory, so that a look does not read each of them from disk.
READ_AHEAD_MS = 5_000
# Refusals of single rows after which a pass is abandoned and begun again.
REFUSALS_MAX = 50


@dataclass(slots=True)
class Plan:
    """What one pass does with one schedule."""

    message: Message
    schedule: ScheduleSettings
    before: ScheduleProgress
    after: ScheduleProgress
    occurrences: list[Occurrence] = field(default_factory=list)


class CronUnit:
    """Prepares the occurrences of every cron topic."""

    def __init__(self, broker: BrokerContext, transactions: Transactions, random: Random) -> None:
        self._broker = broker
        self._transactions = transactions
        self._random = random
        self._wake_up = asyncio.Event()
        self._begin()

    def _begin(self) -> None:
        self._session = ProducerSession(self._broker.clock.now_ms(), self._random.getrandbits(32))
        self._sequence = 0
        self._counters: dict[int, int] = {}

    def notify(self) -> None:
        """Check now: a schedule was put or resumed."""
        self._wake_up.set()

    async def run(self) -> None:
        """Check repeatedly, until cancelled."""
        while True:
            self._wake_up.clear()
            following = NEVER_MS
            cron_topics = [
                topic
                for topic in self._broker.catalog.all()
                if topic.settings.kind is TopicKind.CRON and topic.state is TopicStage.LIVE
            ]
            for topic in cron_topics:
                following = min(following, await self._look_safely(topic))
            if len(self._counters) > len(cron_topics):
                numbers = {topic.number for topic in cron_topics}
                self._counters = {number: made for number, made in self._counters.items() if number in numbers}
            await self._pause(following)

    async def _pause(self, until_ms: int) -> None:
        clock = self._broker.clock
        seconds = min(LOOK_SECONDS, max(0.0, (until_ms - clock.now_ms()) / 1_000))
        tasks = [asyncio.ensure_future(clock.sleep(seconds)), asyncio.ensure_future(self._wake_up.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    async def _look_safely(self, topic: Topic) -> int:
        try:
            return await self.look(topic)
        except DejaqError as error:
            # What was done is seen at the next look; the names that were used are not used again.
            self._begin()
            log.info("the schedules of %s are checked later: %s", topic.name, error)
            return self._broker.clock.now_ms() + int(LOOK_SECONDS * 1_000)

    async def look(self, topic: Topic) -> int:
        """Create the occurrences that are due to be prepared; returns when the next pass is needed."""
        broker = self._broker
        book = await broker.catalog.schedules_of(topic)
        buckets = range(book.settings.buckets)
        now = broker.clock.now_ms()
        await broker.storage.load(book, buckets, now + READ_AHEAD_MS)
        cursor: bytes | None = None
        while True:
            page = await broker.storage.browse(book, Filter(end=now + 1), cursor, PAGE, now)
            for start in range(0, len(page.messages), CHUNK):
                plans = await self._plans(topic, page.messages[start : start + CHUNK], now)
                await self._commit(topic, book, plans)
                # Deliveries that are due meanwhile go first.
                await asyncio.sleep(0)
            cursor = page.cursor
            if cursor is None:
                return await broker.storage.next_ts(book, buckets, now) or NEVER_MS

    async def _plans(self, topic: Topic, messages: list[Message], now: int) -> list[Plan]:
        read = [(message, *_decoded(message)) for message in messages]
        waiting = [p.last_id for _, s, p in read if s.overlap is Overlap.SKIP and p.last_id]
        found = await self._broker.storage.get(topic, waiting, now) if waiting else []
        there = {message.id for message in found if message is not None}
        plans: list[Plan] = []
        rows = 0
        for message, schedule, progress in read:
            made, after = advance(schedule, progress, topic=topic.name, now=now, last_there=progress.last_id in there)
            rows += len(made)
            if plans and rows > ROWS_MAX:
                break
            plans.append(Plan(message, schedule, progress, after, made))
        return plans

    async def _commit(self, topic: Topic, book: Topic, plans: list[Plan]) -> None:
        """Commit the plans together; a row that is refused is left out, because another broker was first."""
        for _ in range(REFUSALS_MAX):
            if not plans:
                return
            steps, made = self._steps(topic, book, plans)
            verdict = await self._transactions.do(_CONTEXT, Transaction(self._session, self._sequence, steps))
            if verdict.code.succeeded:
                self._done(topic, plans)
                return
            if verdict.step == 0:
                # Changed or removed meanwhile; the next look sees how.
                plans = [plan for place, plan in enumerate(plans) if place != verdict.row]
            else:
                plan, occurrence = made[verdict.step - 1][verdict.row]
                log.info("occurrence %s of %s is not created: %s", occurrence.id, topic.name, verdict.code.name)
                plan.occurrences.remove(occurrence)

    def _steps(
        self, topic: Topic, book: Topic, plans: list[Plan]
    ) -> tuple[list[Step], list[list[tuple[Plan, Occurrence]]]]:
        """The steps of plans, and what each row of the creates is."""
        edits = Edits(
            ids=[plan.message.id for plan in plans],
            ts=[wake_ms(plan.schedule, plan.after) for plan in plans],
            bodies=[encode(plan.schedule, plan.after) for plan in plans],
            versions=[plan.message.version for plan in plans],
        )
        steps: list[Step] = [Edit(book, OWNER, edits)]
        groups: dict[str, list[tuple[Plan, Occurrence]]] = {}
        for plan in plans:
            for occurrence in plan.occurrences:
                groups.setdefault(plan.schedule.group, []).append((plan, occurrence))
        sequence = self._counters.get(topic.number, 0)
        for group, rows in groups.items():
            made = [(plan.schedule, occurrence) for plan, occurrence in rows]
            steps.append(Create(topic, batch_of(made, owner=group, session=self._session, sequence=sequence)))
            sequence += len(rows)
        return steps, list(groups.values())

    def _done(self, topic: Topic, plans: list[Plan]) -> None:
        self._sequence += 1
        made = sum(len(plan.occurrences) for plan in plans)
        self._counters[topic.number] = self._counters.get(topic.number, 0) + made
        self._broker.metrics.add(OCCURRENCES, made, topic.name, "created")
        for plan in plans:
            for entry in plan.after.history:
                if entry[1] != OccurrenceOutcome.CREATED and entry not in plan.before.history:
                    self._broker.metrics.add(OCCURRENCES, 1, topic.name, entry[1])


def batch_of(
    rows: list[tuple[ScheduleSettings, Occurrence]], *, owner: str, session: ProducerSession, sequence: int
) -> CreateBatch:
    """Occurrences of one producer group as messages to create."""
    return CreateBatch(
        owner=owner,
        session=session,
        sequence=sequence,
        ts=[occurrence.ts for _, occurrence in rows],
        bodies=[occurrence.body for _, occurrence in rows],
        ids=[occurrence.id for _, occurrence in rows],
        priorities=[schedule.priority for schedule, _ in rows],
        headers=[encode_headers(schedule.headers) for schedule, _ in rows],
    )


def _decoded(message: Message) -> tuple[ScheduleSettings, ScheduleProgress]:
    """The schedule in a message; a schedule that cannot be read is paused and logged."""
    try:
        return decode(message.body)
    except DejaqError as error:
        log.error("schedule %s: %s", message.id, error)
        return ScheduleSettings(name=message.id, expression="@yearly"), ScheduleProgress(paused=True)
