"""The calls of the `Cron` service: schedules are put, listed, paused, resumed, run and removed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from random import Random
from typing import Any

from dejaq import limits
from dejaq.broker.calls.transactions import Transactions
from dejaq.broker.cron.unit import OWNER, CronUnit, batch_of
from dejaq.broker.rights.needs import Claim
from dejaq.broker.sessions.broker_context import BrokerContext
from dejaq.domain.batch import CreateBatch
from dejaq.domain.changes import Cancel, Create, Edit, Edits
from dejaq.domain.context import CallContext
from dejaq.domain.ids import ProducerSession
from dejaq.domain.message import Message
from dejaq.domain.schedules.schedule import (
    Occurrence,
    OccurrenceOutcome,
    ScheduleProgress,
    ScheduleSettings,
    begun,
    decode,
    encode,
    prepared_ids,
    schedule_of,
    wake_ms,
    withdrawn,
)
from dejaq.domain.topic import Topic, TopicKind
from dejaq.errors import Code, DejaqError, InvalidArgument, Unavailable, error_of
from dejaq.protocol.schedules import info_to_proto, values_from_proto
from dejaq.protocol.v1 import cron_pb2 as cron
from dejaq.security.rights.operations import Operation
from dejaq.storage.base import Filter
from dejaq.storage.transactions import Step, Transaction, Verdict

# How often a change is tried again because another client changed the schedule first.
TRIES = 8
_KEY = re.compile(r"[0-9A-Za-z]{1,16}")


class CronService:
    """Answers about the schedules of cron topics, and changes them."""

    def __init__(self, broker: BrokerContext, transactions: Transactions, unit: CronUnit, random: Random) -> None:
        self._broker = broker
        self._transactions = transactions
        self._unit = unit
        self._random = random

    async def put(self, context: CallContext, request: cron.PutSchedulesRequest) -> cron.SchedulesResponse:
        """Add schedules or change those that exist, all or none."""
        self._broker.doctor.admit("create")
        topic = self._topic(request.topic)
        if not 1 <= len(request.schedules) <= limits.SCHEDULES_PER_CALL_MAX:
            raise InvalidArgument(f"a call puts 1 to {limits.SCHEDULES_PER_CALL_MAX} schedules")
        wanted = [values_from_proto(proto) for proto in request.schedules]
        if len({values["name"] for values in wanted}) < len(wanted):
            raise error_of(Code.DUPLICATE_IN_BATCH, "a schedule is named twice")
        # An expression is searched for its next times once; one that never matches takes a tenth of a second.
        await asyncio.to_thread(_searched, wanted, self._broker.clock.now_ms())
        for _ in range(TRIES):
            infos, verdict = await self._put(context, topic, wanted, replacing=request.replace)
            if verdict.code.succeeded:
                self._unit.notify()
                return cron.SchedulesResponse(schedules=[info_to_proto(*info) for info in infos])
        raise Unavailable("the schedules are being changed by others; try again")

    async def _put(
        self, context: CallContext, topic: Topic, wanted: Sequence[Mapping[str, Any]], *, replacing: bool
    ) -> tuple[list[tuple[ScheduleSettings, ScheduleProgress]], Verdict]:
        now = self._broker.clock.now_ms()
        found = await self._read(topic, [values["name"] for values in wanted])
        infos: list[tuple[ScheduleSettings, ScheduleProgress]] = []
        fresh: list[tuple[ScheduleSettings, ScheduleProgress]] = []
        steps: list[Step] = []
        for values, old in zip(wanted, found, strict=True):
            # A replacement keeps what it does not name.
            kept = asdict(old[1]) if old is not None and replacing else {}
            schedule = schedule_of({**kept, **values})
            said = schedule if schedule.start_ms else replace(schedule, start_ms=now)
            if old is None:
                fresh.append((said, begun(said, now)))
                infos.append(fresh[-1])
                continue
            message, there, progress = old
            # The replaced schedule sent as this group, and may keep it.
            claim = Claim(Operation.PRODUCE, topic.name, there.group)
            self._broker.guard.require(context, "Cron.Put", ((claim,),))
            if replace(schedule, start_ms=schedule.start_ms or there.start_ms) == there:
                infos.append((there, progress))
                continue
            if not replacing:
                raise error_of(
                    Code.ID_TAKEN, f"topic {topic.name!r} has a schedule {schedule.name!r} that says something else"
                )
            withdrawal, left = await self._withdrawn(topic, there, progress, now)
            after = replace(begun(said, now), count=left.count, history=left.history, paused=progress.paused)
            steps += withdrawal
            steps.append(await self._edited(topic, message, said, after))
            infos.append((said, after))
        if fresh:
            steps.append(Create(await self._book(topic), self._records(fresh)))
        return infos, await self._do(context, steps)

    async def listed(self, context: CallContext, request: cron.ListSchedulesRequest) -> cron.SchedulesResponse:
        """Schedules by name, or a page of all."""
        topic = self._topic(request.topic)
        if request.names:
            found = await self._read(topic, list(request.names))
            return cron.SchedulesResponse(schedules=[info_to_proto(old[1], old[2]) for old in found if old is not None])
        now = self._broker.clock.now_ms()
        limit = min(request.limit or limits.SCHEDULES_PER_CALL_MAX, limits.SCHEDULES_PER_CALL_MAX)
        page = await self._broker.storage.browse(await self._book(topic), Filter(), request.cursor or None, limit, now)
        return cron.SchedulesResponse(
            schedules=[info_to_proto(*decode(message.body)) for message in page.messages], cursor=page.cursor or b""
        )

    async def change(self, context: CallContext, request: cron.ChangeScheduleRequest) -> cron.SchedulesResponse:
        """Pause, resume, run or remove one schedule."""
        self._broker.doctor.admit("create")
        topic = self._topic(request.topic)
        for _ in range(TRIES):
            (old,) = await self._read(topic, [request.name])
            if old is None:
                if request.action == cron.REMOVE:
                    return cron.SchedulesResponse()
                raise _missing(topic, request.name)
            info, verdict = await self._change(context, topic, *old, request)
            if verdict.code.succeeded:
                self._unit.notify()
                return cron.SchedulesResponse(schedules=[info_to_proto(*info)])
        raise Unavailable("the schedule is being changed by others; try again")

    async def _change(
        self,
        context: CallContext,
        topic: Topic,
        message: Message,
        schedule: ScheduleSettings,
        progress: ScheduleProgress,
        request: cron.ChangeScheduleRequest,
    ) -> tuple[tuple[ScheduleSettings, ScheduleProgress], Verdict]:
        now = self._broker.clock.now_ms()
        steps: list[Step] = []
        after = progress
        if request.action == cron.PAUSE:
            steps, left = await self._withdrawn(topic, schedule, progress, now)
            after = replace(left, paused=True)
        elif request.action == cron.RESUME:
            if progress.paused:
                after = replace(progress, paused=False, next_ms=schedule.next_after(now))
        elif request.action == cron.RUN:
            after, steps = await self._run(topic, schedule, progress, request.key, now)
        elif request.action == cron.REMOVE:
            steps, _ = await self._withdrawn(topic, schedule, progress, now)
            steps.append(Cancel(await self._book(topic), OWNER, [schedule.name]))
            return (schedule, progress), await self._do(context, steps)
        else:
            raise InvalidArgument("a change is pause, resume, run or remove")
        if after != progress:
            steps.append(await self._edited(topic, message, schedule, after))
        return (schedule, after), await self._do(context, steps)

    async def _run(
        self, topic: Topic, schedule: ScheduleSettings, progress: ScheduleProgress, key: str, now: int
    ) -> tuple[ScheduleProgress, list[Step]]:
        if _KEY.fullmatch(key) is None:
            raise InvalidArgument("a run is named by 1 to 16 letters and digits, so that a repeat is none")
        message_id = f"{schedule.name}:run-{key}"
        (there,) = await self._broker.storage.get(topic, [message_id], now)
        if there is not None or progress.last_id == message_id:
            return progress, []
        body = schedule.body(at_ms=now, count=progress.count + 1, topic=topic.name)
        after = replace(progress, count=progress.count + 1, last_id=message_id).noted((now, OccurrenceOutcome.RUN))
        rows = [(schedule, Occurrence(message_id, now, body))]
        return after, [Create(topic, batch_of(rows, owner=schedule.group, session=self._session(), sequence=0))]

    async def coming(self, context: CallContext, request: cron.NextTimesRequest) -> cron.NextTimesResponse:
        """The coming times of a schedule."""
        now = self._broker.clock.now_ms()
        count = min(request.count or 1, limits.SCHEDULE_TIMES_MAX)
        if request.HasField("proposed"):
            schedule = schedule_of(values_from_proto(request.proposed))
            schedule = schedule if schedule.start_ms else replace(schedule, start_ms=now)
            return cron.NextTimesResponse(times_ms=schedule.times(now, count))
        topic = self._topic(request.topic)
        (old,) = await self._read(topic, [request.name])
        if old is None:
            raise _missing(topic, request.name)
        return cron.NextTimesResponse(times_ms=old[1].times(now, count))

    # Steps

    async def _read(
        self, topic: Topic, names: list[str]
    ) -> list[tuple[Message, ScheduleSettings, ScheduleProgress] | None]:
        found = await self._broker.storage.get(await self._book(topic), names, self._broker.clock.now_ms())
        return [(message, *decode(message.body)) if message is not None else None for message in found]

    async def _withdrawn(
        self, topic: Topic, schedule: ScheduleSettings, progress: ScheduleProgress, now: int
    ) -> tuple[list[Step], ScheduleProgress]:
        """Cancel what is prepared and not yet due, where its owner still has it and nobody works on it.

        Gives the steps and the progress without them.
        """
        ids = prepared_ids(schedule, progress, now)
        found = await self._broker.storage.get(topic, ids, now) if ids else []
        left = [m.id for m in found if m is not None and m.producer_group == schedule.group and m.ts > now]
        return ([Cancel(topic, schedule.group, left)] if left else []), withdrawn(schedule, progress, left)

    async def _edited(
        self, topic: Topic, message: Message, schedule: ScheduleSettings, progress: ScheduleProgress
    ) -> Edit:
        edits = Edits(
            ids=[message.id],
            ts=[wake_ms(schedule, progress)],
            bodies=[encode(schedule, progress)],
            versions=[message.version],
        )
        return Edit(await self._book(topic), OWNER, edits)

    def _records(self, schedules: Sequence[tuple[ScheduleSettings, ScheduleProgress]]) -> CreateBatch:
        return CreateBatch(
            owner=OWNER,
            session=self._session(),
            sequence=0,
            ts=[wake_ms(schedule, progress) for schedule, progress in schedules],
            bodies=[encode(schedule, progress) for schedule, progress in schedules],
            ids=[schedule.name for schedule, _ in schedules],
        )

    async def _do(self, context: CallContext, steps: Sequence[Step]) -> Verdict:
        if not steps:
            return Verdict()
        return await self._transactions.do(context, Transaction(self._session(), 0, steps))

    def _session(self) -> ProducerSession:
        """A name that is used once: what a client repeats is recognised by the schedule itself."""
        return ProducerSession(self._broker.clock.now_ms(), self._random.getrandbits(32))

    def _topic(self, name: str) -> Topic:
        topic = self._broker.catalog.live(name)
        if topic.settings.kind is not TopicKind.CRON:
            raise InvalidArgument(f"topic {name!r} is a {topic.settings.kind} topic and has no schedules")
        return topic

    async def _book(self, topic: Topic) -> Topic:
        return await self._broker.catalog.schedules_of(topic)


def _missing(topic: Topic, name: str) -> Exception:
    return error_of(Code.NOT_FOUND, f"topic {topic.name!r} has no schedule {name[:80]!r}")


def _searched(wanted: Sequence[Mapping[str, Any]], now: int) -> None:
    """Search the next times of schedules, whose result is remembered; the next search reports errors."""
    for values in wanted:
        with suppress(DejaqError):
            begun(schedule_of(values), now)
