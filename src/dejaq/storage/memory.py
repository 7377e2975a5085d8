"""The reference storage: one Python object a message. Every other backend must answer as it does.

It also serves users' tests. What it holds lives as long as the object: `close` and `open` keep it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence

from dejaq.domain import transitions
from dejaq.domain.batch import CreateBatch, LeaseRequest, LeaseSet, Outcomes, RowRange
from dejaq.domain.dead_letter import EXHAUSTED, exhausted
from dejaq.domain.message import Message
from dejaq.domain.topic import Topic, TopicState
from dejaq.errors import Code, error_of
from dejaq.storage.base import Capabilities, Edits, Filter, Holder, Page, outermost
from dejaq.storage.memory_bodies import MemoryBodies
from dejaq.storage.memory_dead import Passage, delays_of
from dejaq.storage.memory_deciding import (
    cell,
    check_times,
    decide_create,
    decide_step,
    fitted,
    may_lease,
    message_of,
    missing_body,
    settle,
)
from dejaq.storage.memory_journal import MemoryJournal
from dejaq.storage.memory_paging import check_cursor, matches, position_of
from dejaq.storage.memory_snapshot import MemorySnapshot
from dejaq.storage.memory_timeline import HeldLease, HeldMessage, Timeline, lease_set
from dejaq.storage.outbox import DEAD_LETTERED, DELETED, EXTENDED, RECALLED, RELEASED
from dejaq.storage.steps import (
    CancelStep,
    CreateStep,
    DeleteStep,
    EditStep,
    Names,
    Step,
    Transaction,
    Verdict,
)


class MemoryStorage:
    """A `Storage` in this process's memory, lost with it; with `journal` it keeps a record of every change."""

    def __init__(self, *, journal: bool = False) -> None:
        self._open = False
        self._journal = MemoryJournal(journal)
        self._topics: dict[int, Topic] = {}
        self._timelines: dict[int, Timeline] = {}
        self._topic_number = 0
        self._version = 0
        self.bodies = MemoryBodies(lambda: (m.body for timeline in self._timelines.values() for m in timeline.all()))
        # Of no topic: only its sessions are used, for the names of transactions.
        self._transactions = Timeline(self.bodies)

    @property
    def capabilities(self) -> Capabilities:
        """Neither durable nor shared."""
        return Capabilities(name="memory", durable=False, shared=False, shares_bodies=True)

    @property
    def failure(self) -> str | None:
        """Why nothing can be done: the store is not open."""
        return None if self._open else "the memory store is not open"

    async def open(self, now: int) -> None:
        """Make the store usable; what it held before is still there."""
        self._open = True

    async def close(self) -> None:
        """Refuse everything until the next `open`."""
        self._open = False

    async def recover(self, now: int) -> None:
        """Open the store again."""
        self._open = True

    # Topics

    async def topics(self) -> list[Topic]:
        """Every topic, in any state, by number."""
        self._check_open()
        return [self._topics[number] for number in sorted(self._topics)]

    async def put_topic(self, topic: Topic) -> None:
        """Create or replace the record of a topic."""
        self._check_open()
        self._topics[topic.number] = topic
        self._topic_number = max(self._topic_number, topic.number)

    async def next_topic_number(self) -> int:
        """A number that no topic of this store ever had."""
        self._check_open()
        self._topic_number += 1
        return self._topic_number

    async def drop_topic(self, topic: Topic, now: int) -> None:
        """Remove a topic, its messages and everything kept for them."""
        self._check_open()
        if self._topics.pop(topic.number, None) is not None:
            self._journal.dropped(topic)
            self._journal.commit(now)
        self._timelines.pop(topic.number, None)

    # The producer's side

    async def create(self, topic: Topic, batch: CreateBatch, now: int) -> Outcomes:
        """Create the admitted rows. A row counts as seen only when it stood as asked."""
        timeline = self._timeline(topic)
        seen = timeline.seen_counters(batch.session, now)
        version = self._next_version()
        outcomes = Outcomes(len(batch), dict(batch.refused))
        created: list[RowRange] = []
        for row in range(len(batch)):
            if row in batch.refused:
                continue
            counter = batch.sequence + row
            if counter in seen:
                outcomes.codes[row] = Code.ALREADY_EXISTS
                continue
            new = message_of(topic, batch, row=row, version=version)
            code = decide_create(timeline, new, large=batch.large)
            if code is Code.OK:
                timeline.add(new)
                start = created.pop()[0] if created and created[-1][1] == row else row
                created.append((start, row + 1))
            else:
                outcomes.codes[row] = code
            if code.succeeded:
                seen.add(counter)
        self._journal.created(topic, batch, created)
        self._journal.commit(now)
        return outcomes

    async def edit(self, topic: Topic, owner: str, edits: Edits, now: int) -> Outcomes:
        """Change what the owner may change; a changed message has a new version and no lock."""
        timeline = self._timeline(topic)
        self._lapse(topic, timeline, now)
        version = self._next_version()
        outcomes = Outcomes(len(edits.ids))
        changed: dict[int, HeldMessage] = {}
        for row, message_id in enumerate(edits.ids):
            message = timeline.find(message_id)
            code = transitions.decide_by_owner(
                message.standing() if message else None,
                owner=owner,
                now=now,
                version=cell(edits.versions, row),
            )
            code = missing_body(timeline, edits, row) if code is Code.OK else code
            if message is None or code is not Code.OK:
                outcomes.codes[row] = code
                continue
            timeline.leave_lease(message)
            message.version = version
            if (body := cell(edits.bodies, row)) is not None:
                timeline.replace_body(message, body)
            if (headers := cell(edits.headers, row)) is not None:
                message.headers = headers
            if (priority := cell(edits.priorities, row)) is not None:
                message.priority = priority
            ts = cell(edits.ts, row)
            timeline.place(message, message.ts if ts is None else ts)
            changed[id(message)] = message
        self._journal.edited(topic, owner, edits, list(changed.values()))
        self._journal.commit(now)
        return outcomes

    async def cancel(
        self, topic: Topic, owner: str, ids: Sequence[str], now: int, versions: Sequence[int | None] | None = None
    ) -> Outcomes:
        """Remove messages that nobody holds."""
        timeline = self._timeline(topic)
        self._lapse(topic, timeline, now)
        outcomes = Outcomes(len(ids))
        cancelled: list[str] = []
        for row, message_id in enumerate(ids):
            message = timeline.find(message_id)
            standing, version = message.standing() if message else None, cell(versions, row)
            code = transitions.decide_by_owner(standing, owner=owner, now=now, version=version)
            if message is None or code is not Code.OK:
                outcomes.codes[row] = code
            else:
                timeline.remove(message)
                cancelled.append(message_id)
        self._journal.cancelled(topic, owner, cancelled)
        self._journal.commit(now)
        return outcomes

    # The consumer's side

    async def lease(self, topic: Topic, request: LeaseRequest, now: int) -> LeaseSet | None:
        """Lease what is free and due, earliest first, then lower priority first."""
        timeline = self._timeline(topic)
        request = fitted(topic, request, now)
        limit = self._limit(topic, request)
        self._lapse(topic, timeline, now)
        chosen: list[HeldMessage] = []
        dead: list[HeldMessage] = []
        skipped: list[HeldMessage] = []
        size = 0
        for message in timeline.due(request.buckets, max(request.until, now)):
            if len(chosen) + len(dead) == request.rows_max or (chosen and size + message.size > request.bytes_max):
                skipped.append(message)
                break
            if not may_lease(message, request, now):
                skipped.append(message)
            elif exhausted(message.attempts, limit):
                dead.append(message)
            else:
                chosen.append(message)
                size += message.size
        for message in skipped:
            timeline.hold(message, message.ts)
        return self._grant(topic, chosen, dead, request, now)

    async def lease_these(
        self, topic: Topic, ids: Sequence[str], request: LeaseRequest, now: int, *, dead: Sequence[str] = ()
    ) -> LeaseSet | None:
        """Lease exactly these messages, in this order, and bury `dead`; None when `request` does not allow one of them.

        For comparing a storage with this one: among messages of equal time and priority the choice is free.
        """
        timeline = self._timeline(topic)
        request = fitted(topic, request, now)
        limit = self._limit(topic, request)
        self._lapse(topic, timeline, now)
        leasable = [
            message
            for message in map(timeline.find, (*ids, *dead))
            if message is not None and message.bucket in request.buckets and may_lease(message, request, now)
        ]
        chosen = [message for message in leasable if not exhausted(message.attempts, limit)]
        buried = [message for message in leasable if exhausted(message.attempts, limit)]
        if (len(chosen), len(buried)) != (len(ids), len(dead)):
            return None
        return self._grant(topic, chosen, buried, request, now)

    async def leasable(self, topic: Topic, request: LeaseRequest, now: int) -> list[Message]:
        """Every message that `request` might lease or bury, without its row and byte limits, in order."""
        request = fitted(topic, request, now)
        self._lapse(topic, self._timeline(topic), now)
        self._journal.commit(now)
        messages = [m for m in self._timeline(topic).all() if m.bucket in request.buckets]
        messages = [m for m in messages if may_lease(m, request, now)]
        if topic.by_priority:
            messages.sort(key=lambda m: (m.priority, m.ts))
        else:
            messages.sort(key=lambda m: (m.ts, m.priority))
        return [m.message(topic.name) for m in messages]

    async def next_ts(self, topic: Topic, buckets: Sequence[int], now: int) -> int | None:
        """The earliest position of any message in `buckets`, a lease's end included."""
        return self._timeline(topic).earliest(buckets)

    async def load(self, topic: Topic, buckets: Sequence[int], until: int) -> None:
        """Nothing to do: everything is near."""

    async def leases_of(self, topic: Topic, consumer: str, now: int) -> list[LeaseSet]:
        """What is left of the live leases of `consumer`, one set for each end that its rows have."""
        sets: list[LeaseSet] = []
        for lease in self._timeline(topic).leases.values():
            if lease.consumer != consumer:
                continue
            ends: dict[int, list[HeldMessage]] = {}
            for message in lease.messages():
                if message.ts > now:
                    ends.setdefault(message.ts, []).append(message)
            sets += [lease_set(lease, expires=end, messages=ends[end]) for end in sorted(ends)]
        return sets

    async def delete(
        self,
        topic: Topic,
        lease_id: int,
        consumer: str,
        rows: Sequence[RowRange] | None,
        now: int,
        handed_us: Sequence[int] = (),
    ) -> Outcomes:
        """Remove rows of a live lease."""
        timeline = self._timeline(topic)
        lease = timeline.leases.get(lease_id)
        outcomes, settled = settle(lease, consumer, rows, now, lambda message, _: timeline.remove(message))
        self._journal.settled(DELETED, topic, lease, settled, handed_us=handed_us)
        self._journal.commit(now)
        return outcomes

    async def extend(
        self,
        topic: Topic,
        lease_id: int,
        consumer: str,
        rows: Sequence[RowRange] | None,
        expires: int,
        now: int,
    ) -> Outcomes:
        """Move the end of a live lease, never to an earlier time; the lease id stays."""
        timeline = self._timeline(topic)
        lease = timeline.leases.get(lease_id)
        moved: list[tuple[int, HeldMessage]] = []

        def lengthen(message: HeldMessage, position: int) -> None:
            if message.ts < expires:
                timeline.hold(message, expires)
                moved.append((position, message))

        outcomes, _ = settle(lease, consumer, rows, now, lengthen)
        self._journal.settled(EXTENDED, topic, lease, moved, expires=expires)
        self._journal.commit(now)
        return outcomes

    async def release(
        self,
        topic: Topic,
        lease_id: int,
        consumer: str,
        rows: Sequence[RowRange] | None,
        ts: int | Sequence[int],
        now: int,
        handed_us: Sequence[int] = (),
    ) -> Outcomes:
        """End a live lease and put the rows at `ts`; each gets a new version."""
        timeline = self._timeline(topic)
        lease = timeline.leases.get(lease_id)
        check_times(lease, rows, ts)
        version = self._next_version()

        def put_back(message: HeldMessage, position: int) -> None:
            timeline.leave_lease(message)
            message.version = version
            timeline.place(message, ts if isinstance(ts, int) else ts[position])

        outcomes, settled = settle(lease, consumer, rows, now, put_back)
        self._journal.settled(RELEASED, topic, lease, settled, ts=ts, handed_us=handed_us)
        self._journal.commit(now)
        return outcomes

    async def recall(
        self, topic: Topic, lease_id: int, consumer: str, rows: Sequence[RowRange] | None, now: int
    ) -> Outcomes:
        """Undo a live lease that user code never saw: time, attempts and version are as before it.

        Where it followed a lost lease, that one is not brought back: the version is new.
        """
        timeline = self._timeline(topic)
        version = self._next_version()

        def undo(message: HeldMessage, position: int) -> None:
            timeline.leave_lease(message)
            message.version = message.before or version
            message.attempts -= 1
            message.first_lease, message.last_lease = message.leased_before
            timeline.place(message, message.due)

        lease = timeline.leases.get(lease_id)
        outcomes, settled = settle(lease, consumer, rows, now, undo)
        self._journal.settled(RECALLED, topic, lease, settled)
        self._journal.commit(now)
        return outcomes

    # Both sides at once

    async def transact(self, transaction: Transaction, now: int) -> Verdict:
        """Do all steps, or none. Nothing is awaited that waits, so nobody sees a part."""
        done = self._transactions.seen_counters(transaction.session, now)
        if transaction.sequence in done:
            return Verdict(Code.ALREADY_EXISTS)
        for step in transaction.steps:
            # Before anything is decided, since it changes versions.
            if step.topic.settings.expiry_backoff:
                self._lapse(step.topic, self._timeline(step.topic), now)
        self._journal.commit(now)
        names = Names()
        for number, step in enumerate(transaction.steps):
            outcomes, ids = decide_step(self._timeline(step.topic), step, now)
            refusal = names.refusal(number, step.topic, outcomes, ids)
            if refusal is not None:
                return refusal
        with self._journal.one_record(now):
            for step in transaction.steps:
                await self._apply(step, now)
        done.add(transaction.sequence)
        return Verdict()

    async def _apply(self, step: Step, now: int) -> None:
        if isinstance(step, CreateStep):
            await self.create(step.topic, step.batch, now)
        elif isinstance(step, EditStep):
            await self.edit(step.topic, step.owner, step.edits, now)
        elif isinstance(step, CancelStep):
            await self.cancel(step.topic, step.owner, step.ids, now)
        elif isinstance(step, DeleteStep):
            await self.delete(step.topic, step.lease_id, step.consumer, step.rows, now, step.handed_us)
        else:
            await self.release(step.topic, step.lease_id, step.consumer, step.rows, step.ts, now, step.handed_us)

    async def reject(
        self,
        topic: Topic,
        lease_id: int,
        consumer: str,
        rows: Sequence[RowRange] | None,
        dead_letter: Topic,
        reason: str,
        now: int,
        handed_us: Sequence[int] = (),
    ) -> Outcomes:
        """Move rows of a live lease to the dead-letter topic."""
        self._check_live(dead_letter)
        timeline = self._timeline(topic)
        lease = timeline.leases.get(lease_id)
        outcomes, settled = settle(lease, consumer, rows, now, lambda message, _: None)
        self._journal.settled(DEAD_LETTERED, topic, lease, settled, handed_us=handed_us)
        self._bury(topic, dead_letter, [message for _, message in settled], reason, now)
        self._journal.commit(now)
        return outcomes

    async def redrive(self, topic: Topic, target: Topic, ids: Sequence[str], now: int) -> Outcomes:
        """Move dead letters to where they may live again."""
        self._check_live(target)
        if target.number == topic.number:
            raise error_of(Code.INVALID_ARGUMENT, f"{topic.name!r} cannot be redriven to itself")
        self._lapse(topic, self._timeline(topic), now)
        outcomes, left, came = self._passage(topic, target, now).redrive(ids)
        for owner in dict.fromkeys(message.owner for message in left):
            self._journal.cancelled(topic, owner, [message.id for message in left if message.owner == owner])
        self._journal.arrived(target, came)
        self._journal.commit(now)
        return outcomes

    # The journal

    async def journal(self, after: int, bytes_max: int) -> list[bytes]:
        """The records behind a sequence."""
        self._check_open()
        return self._journal.read(after, bytes_max)

    async def trim_journal(self, up_to: int) -> None:
        """Forget the records up to a sequence."""
        self._check_open()
        self._journal.trim(up_to)

    def stats(self) -> dict[str, float]:
        """Numbers for the metrics."""
        return self._journal.stats()

    # Queries

    async def get(self, topic: Topic, ids: Sequence[str], now: int) -> list[Message | None]:
        """The messages, in the order of `ids`; None where there is none."""
        found = map(self._timeline(topic).find, ids)
        return [message.message(topic.name) if message else None for message in found]

    async def holders(self, topic: Topic, ids: Sequence[str], now: int) -> list[Holder | None]:
        """Who holds the live lease of each id; None where nobody does."""
        found = map(self._timeline(topic).find, ids)
        return [message.holder(now) if message is not None else None for message in found]

    async def find_body(self, topic: Topic, digest: bytes) -> bytes | None:
        """A body of the topic by its digest, where it shares them."""
        return self._timeline(topic).find_body(digest)

    async def count(self, topic: Topic, where: Filter, now: int) -> int:
        """How many messages match, exactly."""
        return sum(1 for _ in self._matching(topic, where, now))

    async def histogram(self, topic: Topic, where: Filter, step: int, now: int) -> list[tuple[int, int]]:
        """(start of step, count) for each step of [start, end) that has messages, exactly."""
        counts: dict[int, int] = {}
        for message in self._matching(topic, where, now):
            start = message.ts - (message.ts - where.start) % step
            counts[start] = counts.get(start, 0) + 1
        return sorted(counts.items())

    async def browse(self, topic: Topic, where: Filter, cursor: bytes | None, limit: int, now: int) -> Page:
        """One page of the messages that match, in order of (ts, id), or of (priority, ts, id)."""
        by_priority = topic.by_priority
        matching = (
            (position_of(message, by_priority=by_priority), message) for message in self._matching(topic, where, now)
        )
        if cursor is not None:
            behind = check_cursor(cursor)
            matching = ((at, message) for at, message in matching if at > behind)
        page = heapq.nsmallest(limit + 1, matching, key=lambda item: item[0])
        more = len(page) > limit
        del page[limit:]
        return Page(
            messages=[message.message(topic.name) for _, message in page],
            cursor=page[-1][0] if more and page else None,
        )

    async def oldest(self, topic: Topic, now: int, count: int) -> list[tuple[int, int]]:
        """The oldest available message of each priority."""
        return outermost(self._timeline(topic).oldest(now), count)

    async def snapshot(self, topic: Topic, now: int) -> MemorySnapshot:
        """A copy of the topic."""
        return MemorySnapshot([m.message(topic.name) for m in self._matching(topic, Filter(), now)], now)

    def _matching(self, topic: Topic, where: Filter, now: int) -> Iterator[HeldMessage]:
        return (message for message in self._timeline(topic).all() if matches(message, where, now))

    def _grant(
        self,
        topic: Topic,
        chosen: Sequence[HeldMessage],
        dead: Sequence[HeldMessage],
        request: LeaseRequest,
        now: int,
    ) -> LeaseSet | None:
        if dead:
            assert request.dead_letter is not None
            self._journal.dead_lettered(topic, dead)
            self._bury(topic, request.dead_letter, dead, EXHAUSTED, now)
        lease = self._hold(topic, chosen, request, now) if chosen else None
        if lease is None and dead:
            lease = LeaseSet(0, request.consumer, request.expires, spans=[], ts=[], bodies=[])
        if lease is not None:
            lease.dead = len(dead)
        self._journal.commit(now)
        return lease

    def _bury(self, topic: Topic, target: Topic, dead: Sequence[HeldMessage], reason: str, now: int) -> None:
        """Move messages to the dead-letter topic; the journal knows already that they left."""
        self._journal.arrived(target, self._passage(topic, target, now).bury(dead, reason))

    def _passage(self, topic: Topic, target: Topic, now: int) -> Passage:
        return Passage(
            topic, self._timeline(topic), target, self._timeline(target), version=self._next_version(), now=now
        )

    def _lapse(self, topic: Topic, timeline: Timeline, now: int) -> None:
        """Tell of each lease that has ended unsettled, once, and put its rows where the back-off says."""
        for lease in list(timeline.leases.values()):
            ends: dict[int, list[HeldMessage]] = {}
            for message in lease.messages():
                if message.ts <= now and message.row not in lease.told:
                    ends.setdefault(message.ts, []).append(message)
                    lease.told.add(message.row)
            for _, messages in sorted(ends.items()):
                delays = delays_of(topic.settings, messages)
                self._journal.expired(topic, lease, messages, delays)
                for message, delay in zip(messages, delays, strict=True):
                    if delay:
                        timeline.leave_lease(message)
                        message.version = self._next_version()
                        timeline.place(message, message.ts + delay)

    def _limit(self, topic: Topic, request: LeaseRequest) -> int:
        """How many leases a message may have; without a place for the dead there is no limit."""
        if request.dead_letter is None:
            return 0
        self._check_live(request.dead_letter)
        return topic.settings.max_attempts

    def _check_live(self, topic: Topic) -> None:
        self._check_open()
        stored = self._topics.get(topic.number)
        if stored is None or stored.state is TopicState.DELETING:
            raise error_of(Code.TOPIC_NOT_FOUND, f"topic {topic.name!r} is not there to take messages")

    def _hold(self, topic: Topic, chosen: Iterable[HeldMessage], request: LeaseRequest, now: int) -> LeaseSet:
        timeline = self._timeline(topic)
        lease = HeldLease(lease_id=self._next_version(), consumer=request.consumer)
        messages = list(chosen)
        for message in messages:
            timeline.enter_lease(message, lease, now)
            message.version = lease.lease_id
            message.attempts += 1
            timeline.hold(message, request.expires)
        granted = lease_set(lease, expires=request.expires, messages=messages)
        self._journal.leased(topic, granted)
        return granted

    def _timeline(self, topic: Topic) -> Timeline:
        self._check_open()
        timeline = self._timelines.get(topic.number)
        if timeline is None:
            timeline = self._timelines[topic.number] = Timeline(self.bodies, topic)
        return timeline

    def _next_version(self) -> int:
        self._version += 1
        return self._version

    def _check_open(self) -> None:
        if not self._open:
            raise error_of(Code.STORE_FAILED, "the memory store is not open")
