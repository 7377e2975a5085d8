"""The cron unit: prepares the occurrences of every schedule shortly before they are due.

A schedule is a message of a hidden topic beside its own, at the time it is to be looked at again. One look takes those
that are due, and in one transaction creates the occurrences and moves the schedules on, each on the condition that
nobody has changed it since. So whoever looks, after whatever crash, makes each occurrence once; and since nothing is
leased, a broker that takes over need not wait for anything.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from random import Random

from dejaq.broker.carrier.transactions import Transactions
from dejaq.broker.metrics import OCCURRENCES
from dejaq.broker.parts import Parts
from dejaq.domain.batch import CreateBatch
from dejaq.domain.headers import encode_headers
from dejaq.domain.ids import ProducerSession
from dejaq.domain.message import Message
from dejaq.domain.schedule import (
    NEVER_MS,
    Occurrence,
    Outcome,
    Overlap,
    Progress,
    Schedule,
    advance,
    decode,
    encode,
    wake_ms,
)
from dejaq.domain.topic import Topic, TopicKind, TopicState
from dejaq.errors import DejaqError
from dejaq.storage.base import Edits, Filter
from dejaq.storage.steps import CreateStep, EditStep, Step, Transaction

log = logging.getLogger(__name__)

# Owns the messages that schedules are.
OWNER = "cron"
PAGE = 500
# A transaction holds the loop up, and with it deliveries; one of this size takes some milliseconds.
CHUNK = 100
ROWS_MAX = 1_000
LOOK_SECONDS = 1.0
# How far ahead schedules are read into memory, so that a look does not read each of them from disk.
READ_AHEAD_MS = 5_000
# Refusals of single rows after which a look is given up and begun anew.
REFUSALS_MAX = 50


@dataclass(slots=True)
class Plan:
    """What one look makes of one schedule."""

    message: Message
    schedule: Schedule
    before: Progress
    after: Progress
    occurrences: list[Occurrence] = field(default_factory=list)


class CronUnit:
    """Looks after the schedules of every cron topic."""

    def __init__(self, parts: Parts, transactions: Transactions, random: Random) -> None:
        self._parts = parts
        self._transactions = transactions
        self._random = random
        self._nudged = asyncio.Event()
        self._begin()

    def _begin(self) -> None:
        self._session = ProducerSession(self._parts.clock.now_ms(), self._random.getrandbits(32))
        self._sequence = 0
        self._counters: dict[int, int] = {}

    def nudge(self) -> None:
        """Look at once: a schedule was put or resumed."""
        self._nudged.set()

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            self._nudged.clear()
            following = NEVER_MS
            for topic in self._parts.catalog.all():
                if topic.settings.kind is TopicKind.CRON and topic.state is TopicState.LIVE:
                    following = min(following, await self._look_safely(topic))
            await self._pause(following)

    async def _pause(self, until_ms: int) -> None:
        clock = self._parts.clock
        seconds = min(LOOK_SECONDS, max(0.0, (until_ms - clock.now_ms()) / 1_000))
        tasks = [asyncio.ensure_future(clock.sleep(seconds)), asyncio.ensure_future(self._nudged.wait())]
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
            log.info("the schedules of %s are looked at later: %s", topic.name, error)
            return self._parts.clock.now_ms() + int(LOOK_SECONDS * 1_000)

    async def look(self, topic: Topic) -> int:
        """Prepare what is due to be prepared; when the next look is needed."""
        parts = self._parts
        book = await parts.catalog.schedules_of(topic)
        buckets = range(book.settings.buckets)
        now = parts.clock.now_ms()
        await parts.storage.load(book, buckets, now + READ_AHEAD_MS)
        cursor: bytes | None = None
        while True:
            page = await parts.storage.browse(book, Filter(end=now + 1), cursor, PAGE, now)
            for start in range(0, len(page.messages), CHUNK):
                plans = await self._plans(topic, page.messages[start : start + CHUNK], now)
                await self._commit(topic, book, plans)
                # Deliveries that are due meanwhile go first.
                await asyncio.sleep(0)
            cursor = page.cursor
            if cursor is None:
                return await parts.storage.next_ts(book, buckets, now) or NEVER_MS

    async def _plans(self, topic: Topic, messages: list[Message], now: int) -> list[Plan]:
        read = [(message, *_decoded(message)) for message in messages]
        waiting = [p.last_id for _, s, p in read if s.overlap is Overlap.SKIP and p.last_id]
        found = await self._parts.storage.get(topic, waiting, now) if waiting else []
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
        """Do the plans together; a row that is refused is left out, since somebody else was first."""
        for _ in range(REFUSALS_MAX):
            if not plans:
                return
            steps, made = self._steps(topic, book, plans)
            verdict = await self._transactions.do(Transaction(self._session, self._sequence, steps))
            if verdict.code.succeeded:
                self._done(topic, plans)
                return
            if verdict.step == 0:
                # Changed or removed meanwhile; the next look sees how.
                plans = [plan for place, plan in enumerate(plans) if place != verdict.row]
            else:
                plan, occurrence = made[verdict.step - 1][verdict.row]
                log.info("occurrence %s of %s is not made: %s", occurrence.id, topic.name, verdict.code.name)
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
        steps: list[Step] = [EditStep(book, OWNER, edits)]
        groups: dict[str, list[tuple[Plan, Occurrence]]] = {}
        for plan in plans:
            for occurrence in plan.occurrences:
                groups.setdefault(plan.schedule.group, []).append((plan, occurrence))
        sequence = self._counters.get(topic.number, 0)
        for group, rows in groups.items():
            made = [(plan.schedule, occurrence) for plan, occurrence in rows]
            steps.append(CreateStep(topic, batch_of(made, owner=group, session=self._session, sequence=sequence)))
            sequence += len(rows)
        return steps, list(groups.values())

    def _done(self, topic: Topic, plans: list[Plan]) -> None:
        self._sequence += 1
        made = sum(len(plan.occurrences) for plan in plans)
        self._counters[topic.number] = self._counters.get(topic.number, 0) + made
        self._parts.metrics.add(OCCURRENCES, made, topic.name, "created")
        for plan in plans:
            for entry in plan.after.history:
                if entry[1] != Outcome.CREATED and entry not in plan.before.history:
                    self._parts.metrics.add(OCCURRENCES, 1, topic.name, entry[1])


def batch_of(
    rows: list[tuple[Schedule, Occurrence]], *, owner: str, session: ProducerSession, sequence: int
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


def _decoded(message: Message) -> tuple[Schedule, Progress]:
    """What a message says; one that cannot be read stands still, and the log tells of it."""
    try:
        return decode(message.body)
    except DejaqError as error:
        log.error("schedule %s: %s", message.id, error)
        return Schedule(name=message.id, expression="@yearly"), Progress(paused=True)
