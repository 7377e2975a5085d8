"""The pump of one subscribed consumer: leases what is due in its buckets and pushes it, as credit allows.

Two loops share a short queue of lease calls. The first starts a call whenever there is credit and something may
be due; the second waits for the calls in order and pushes what they leased. So the next call runs during the fsync
of the one before. When nothing is due, the first waits until the earliest of: the time of the next message less the
lead, a notice of a new message, free credit, a new assignment, and a check once per second. All leasers share a timer.
With many consumers at this broker the check is less frequent, and leasers wake together, so that calls share commits.

A pump that has been without credit for a moment, and has not caught up since, shares its buckets: other consumers
lease from them too.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from dejaq import limits
from dejaq.broker.delivery.continuing import continued_leases
from dejaq.broker.delivery.flow import YOUNG_ROWS, Flow, LookAhead
from dejaq.broker.delivery.inflight import Inflight
from dejaq.broker.delivery.pace import LateRows
from dejaq.broker.delivery.priority_window import PriorityWindow
from dejaq.broker.metrics import EXPIRED, LEASED, RECALLED, Metrics
from dejaq.domain.allowance import Allowance
from dejaq.domain.batch import LeaseRequest, LeaseSet
from dejaq.domain.changes import Recall
from dejaq.domain.context import CallContext
from dejaq.domain.topic import Topic
from dejaq.storage.base import Storage, apply_one
from dejaq.timekeeper.alarms import Alarms
from dejaq.timekeeper.clock import Clock

CALLS_MAX = 3
# How often a leaser that waits checks the storage: this often, or less often among many leasers.
RECHECK_MS, RECHECK_MS_MAX = 1_000, 5_000
LEASERS_PER_SECOND = 200
# A consumer finds messages that are due later than this by its own check, and need not be notified.
NOTICE_MS_MAX = limits.PREFETCH_MS_MAX + RECHECK_MS_MAX + 1_000
# How long to wait for a storage that has a message that is due but leases nothing.
RETRY_MS = 10
# A new message that is due within the lead, but not within this time, waits so long after the last lease for others.
URGENT_MS, GATHER_MS = 125, 100
# How long a pump may be without credit before its buckets are shared; or without room for more late messages.
SHARE_MS, SHARE_LATE_MS = 20, 250


@dataclass(slots=True)
class _LeaseCall:
    """One running lease call and the credit that is reserved for it."""

    task: asyncio.Task[LeaseSet | None]
    rows: int
    size: int
    until: int
    window_ms: int
    notices: int
    dead_letter: Topic | None = None
    # The lease is on its way to the client, who must settle it. Until then it can be recalled.
    pushed: bool = False


class Leaser:
    """Leases for one consumer and hands every lease set to `push`, in order."""

    def __init__(
        self,
        *,
        context: CallContext,
        storage: Storage,
        clock: Clock,
        metrics: Metrics,
        topic: Topic,
        consumer: str,
        inflight: Inflight,
        push: Callable[[LeaseSet], Awaitable[None]],
        sharing_changed: Callable[[], None] = lambda: None,
        dead_letter: Callable[[], Awaitable[Topic]] | None = None,
        dead_lettered: Callable[[int, Topic], None] | None = None,
        priority_window: PriorityWindow | None = None,
        confirm: Callable[[], None] = lambda: None,
        alarms: Alarms | None = None,
    ) -> None:
        """`context` is that of the consumer's session; `alarms` are those of all consumers of the broker.

        `confirm` raises when nothing may be leased by the time that was just read.
        """
        self._confirm = confirm
        self._context = context
        self._storage = storage
        self._clock = clock
        self._metrics = metrics
        self._topic = topic
        self._consumer = consumer
        self._inflight = inflight
        self._push = push
        # Where what was leased too often goes, in a topic that has a limit; and who wants to know of it.
        self._dead_letter = dead_letter
        self._dead_lettered = dead_lettered
        # Bounds what is held of a topic by priority; and of late messages in others.
        self._priority_window = priority_window
        self._late_rows = LateRows(clock.now_ms()) if priority_window is None else None
        self._flow = Flow(credit_rows=0, credit_bytes=0, lease_ms=limits.LEASE_MS_DEFAULT, prefetch_ms=0)
        self._sharing_changed = sharing_changed
        self.sharing = False
        # At most so many rows, whatever the credit; None for no such bound.
        self.rows_max: int | None = None
        self._own: Sequence[int] = ()
        self._buckets: Sequence[int] = ()
        self._behind_since: int | None = None
        self._busy_until = 0
        self._allowance: Allowance | None = None
        self._calls: deque[_LeaseCall] = deque()
        self._wake = asyncio.Event()
        self._called = asyncio.Event()
        self._pushed = asyncio.Event()
        self._alarms = alarms if alarms is not None else Alarms(clock)
        self._alarm = self._alarms.alarm(self._wake.set)
        self._ahead = LookAhead(self._flow, self._alarms, clock.now_ms(), shared=storage.capabilities.shared)
        # Nothing more was due up to this time, and nothing has changed since.
        self._dry = False
        self._notices = self._dry_until = 0
        # Whether a call has found nothing; otherwise a call that still runs is expected to get everything.
        self._dry_seen = False
        # Without a copy elsewhere, the storage knows at once what a running call has taken. Otherwise calls overlap
        # only while the last one left something: each is a commit at a server, and most would find nothing.
        self._expects = not storage.capabilities.shared
        self._more_left = False
        # While it waits: until when, and whether for credit or for a time.
        self._resting_until: int | None = None
        self._wants_room = False
        # When it has to lease the most urgent new message since it last rested.
        self._noticed: int | None = None
        # When a lease call last found something.
        self._last_lease = 0

    @property
    def buckets(self) -> Sequence[int]:
        """The buckets that are its own."""
        return self._own

    @property
    def credit_rows(self) -> int:
        """What the consumer is willing to hold."""
        return self._flow.credit_rows

    @property
    def idle(self) -> bool:
        """Whether it has free credit and nothing is due."""
        return self._resting_until is not None and not self._wants_room

    def assign(self, own: Sequence[int], shared: Sequence[int] = ()) -> None:
        """Lease from these buckets from now on: its own, and those of consumers without free credit."""
        self._own = own
        buckets = [*own, *shared] if shared else own
        if buckets != self._buckets:
            gained = not set(buckets).issubset(self._buckets)
            self._buckets = buckets
            if not self._inflight.rows and not self._calls:
                self._inflight.buckets = set(buckets)
            elif self._inflight.buckets is not None:
                self._inflight.buckets.update(buckets)
            if gained:
                self._wake_up()

    def limit(self, rows_max: int | None) -> None:
        """Hold no more than so many rows at the consumer."""
        self.rows_max = rows_max
        self.room_freed()

    def be_busy(self, until: int) -> None:
        """Lease nothing until then, and share the buckets now."""
        self._busy_until = until
        if not self.sharing:
            self._share_buckets(True)
        self._wake.set()

    def set_flow(self, flow: Flow) -> None:
        """Apply new credit, lease length and window."""
        self._flow = flow
        self._ahead.set_flow(flow)
        if self._allowance is None or self._allowance.rate != flow.rate:
            self._allowance = Allowance(flow.rate, self._clock.now_ms()) if flow.rate else None
        self._wake_up()

    def room_freed(self) -> None:
        """Rows were settled: continue if the pump waited for credit."""
        if self._wants_room:
            self._wake.set()

    def settled(self, rows: int, wait_ms: float, taken_ms: float) -> None:
        """Rows were settled that user code got `wait_ms` after they were there and due, and had for `taken_ms`."""
        if self._late_rows is not None:
            now, held = self._clock.now_ms(), self._inflight.rows
            self._late_rows.settled(rows, wait_ms, taken_ms, held=held, now_ms=now)

    def notify(self, ts: int) -> None:
        """A new message is at `ts`."""
        if self._wants_room:
            self._note_notice()
            return
        now = self._clock.now_ms()
        at = ts - self._ahead.lead_ms(now)
        if at <= now:
            # A call that runs now will most likely find something.
            at = min((now if self._calls else self._last_lease) + GATHER_MS, ts - URGENT_MS)
            self._dry_until = min(self._dry_until, ts - 1)
        if at <= now:
            self._wake_up()
        elif self._resting_until is None:
            # Nothing that it does now is about this message. It rests until then at most.
            self._noticed = at if self._noticed is None else min(at, self._noticed)
        elif at < self._resting_until:
            self._resting_until = at
            self._alarm.set(at)

    def _wake_up(self) -> None:
        self._note_notice()
        self._wake.set()

    def _note_notice(self) -> None:
        """What running calls find out about the timeline is no longer valid."""
        self._notices += 1
        self._dry = False

    async def run(self) -> None:
        """Push what the consumer already holds, then lease and push until cancelled or until the store fails."""
        for lease in await continued_leases(
            self._storage, self._clock, self._topic, self._consumer, self._inflight, self._context
        ):
            self._inflight.buckets = None
            self._inflight.add(lease, self._clock.now_ms())
            await self._push(lease)
        try:
            async with asyncio.TaskGroup() as loops:
                loops.create_task(self._lease_loop())
                loops.create_task(self._push_loop())
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            self._alarm.close()

    async def recall_unpushed(self) -> bool:
        """After `run`: recall the leases that were not pushed, so that others get their messages at once.

        Returns whether there were any.
        """
        recalled = False
        while self._calls:
            call = self._calls.popleft()
            # A task that waits for the push of this call need not wait any longer.
            self._pushed.set()
            await asyncio.wait((call.task,))
            lease = None if call.task.cancelled() or call.task.exception() else call.task.result()
            if not lease or call.pushed:
                continue
            self._inflight.settle(lease.lease_id, None)
            # Another broker may have sent these leases to the consumer; then they have another end.
            await apply_one(
                self._storage,
                Recall(self._topic, lease.lease_id, self._consumer, None, lease.expires),
                self._clock.now_ms(),
                self._context,
            )
            self._metrics.add(RECALLED, len(lease), self._topic.name)
            recalled = True
        return recalled

    async def caught_up(self) -> None:
        """Wait until the leases of the running calls are pushed or recalled."""
        waiting = list(self._calls)
        while any(one is call for one in waiting for call in self._calls):
            self._pushed.clear()
            await self._pushed.wait()

    async def _lease_loop(self) -> None:
        while True:
            self._wake.clear()
            now = self._clock.now_ms()
            self._metrics.add(EXPIRED, self._inflight.expire(now), self._topic.name)
            rows, size = self._room(now)
            if self._calls and (self._ahead.probes(now) or not (self._expects or self._more_left)):
                # The end of the call says whether there is more.
                await self._rest(None, for_room=True)
            elif len(self._calls) >= CALLS_MAX or rows <= 0 or size <= 0:
                await self._rest(self._fall_behind(now), for_room=True)
            elif self._dry or not self._buckets:
                self._caught_up()
                due = await self._next_due()
                if due is None or due > self._clock.now_ms():
                    await self._rest(due, for_room=False)
                    # After a mere check, the storage is only asked for the next time again.
                    self._dry = self._dry and (due is None or due > self._clock.now_ms())
                    if self._dry:
                        self._ahead.found_nothing()
                else:
                    self._dry = False
            else:
                await self._call(rows=rows, size=size, now=now)

    def _fall_behind(self, now: int) -> int | None:
        """Record that there is no credit, and share the buckets when that lasts; returns when to check again."""
        if self._behind_since is None:
            self._behind_since = now
        share_ms = SHARE_LATE_MS if self._late_rows is not None and self._late_rows.full else SHARE_MS
        if not self.sharing and now - self._behind_since >= share_ms:
            self._share_buckets(True)
        times = [self._inflight.next_expiry(), None if self.sharing else self._behind_since + share_ms]
        if self._busy_until > now:
            times.append(self._busy_until)
        elif self._late_rows is not None:
            times.append(self._late_rows.next_look())
        if self._allowance is not None and (wait := self._allowance.wait_ms(now)):
            times.append(now + wait)
        return min((time for time in times if time is not None), default=None)

    def _caught_up(self) -> None:
        self._behind_since = None
        if self.sharing:
            self._share_buckets(False)

    def _share_buckets(self, sharing: bool) -> None:
        self.sharing = sharing
        self._sharing_changed()

    def _room(self, now: int) -> tuple[int, int]:
        if self._busy_until > now:
            return 0, 0
        rows = self._flow.credit_rows if self.rows_max is None else min(self._flow.credit_rows, self.rows_max)
        if self._priority_window is not None:
            rows = min(rows, self._priority_window.rows_max(now))
        held = self._inflight.rows + sum(call.rows for call in self._calls)
        rows -= held
        if self._late_rows is not None:
            rows = min(rows, self._late_rows.room(held, now))
        if self._allowance is not None:
            rows = min(rows, self._allowance.left(now))
        if self._ahead.probes(now):
            rows = min(rows, YOUNG_ROWS)
        size = self._flow.credit_bytes - self._inflight.bytes - sum(call.size for call in self._calls)
        return min(rows, limits.LEASE_ROWS_MAX), min(size, limits.BATCH_BYTES_MAX)

    async def _call(self, *, rows: int, size: int, now: int) -> None:
        self._confirm()
        window_ms = self._ahead.reach_ms(now)
        until = now + window_ms
        # Before the buckets are read, because others may be assigned meanwhile.
        dead_letter = None if self._dead_letter is None else await self._dead_letter()
        request = LeaseRequest(
            buckets=self._buckets,
            consumer=self._consumer,
            until=until,
            expires=until + self._flow.lease_ms,
            rows_max=rows,
            bytes_max=size,
            dead_letter=dead_letter,
        )
        if self._allowance is not None:
            self._allowance.take(rows, now)
        task = asyncio.get_running_loop().create_task(self._storage.lease(self._topic, request, now, self._context))
        call = _LeaseCall(
            task=task,
            rows=rows,
            size=size,
            until=until,
            window_ms=window_ms,
            notices=self._notices,
            dead_letter=request.dead_letter,
        )
        self._calls.append(call)
        self._called.set()
        # Lets the synchronous part run: when nothing is due the answer is there at once.
        await asyncio.sleep(0)
        if task.done() and not task.exception() and task.result() is None:
            self._ran_dry(call)
            if len(self._calls) > 1:
                # An empty call must not hold a place behind one that is being committed.
                self._return_allowance(self._calls.pop(), 0)
        elif self._expects and call.notices == self._notices:
            self._dry, self._dry_seen, self._dry_until = True, False, call.until

    def _return_allowance(self, call: _LeaseCall, got: int) -> None:
        if self._allowance is not None:
            self._allowance.take(got - call.rows, self._clock.now_ms())

    def _adapt(self, call: _LeaseCall, got: int) -> None:
        if self._ahead.adapt(call.window_ms, got=got, asked=call.rows):
            self._wake_up()

    def _ran_dry(self, call: _LeaseCall) -> None:
        """A call found nothing."""
        self._adapt(call, 0)
        self._nothing_left(call)

    def _nothing_left(self, call: _LeaseCall) -> None:
        """A call found everything up to the end of its window."""
        if self._late_rows is not None:
            self._late_rows.leased(call.until, self._clock.now_ms())
        if call.notices == self._notices:
            self._dry, self._dry_seen, self._dry_until = True, True, call.until

    async def _push_loop(self) -> None:
        while True:
            while not self._calls:
                self._called.clear()
                await self._called.wait()
            call = self._calls[0]
            # Not `await task`: a cancelled pump must not cancel a commit, whose outcome would then be unknown.
            await asyncio.wait((call.task,))
            lease = call.task.result()
            self._more_left = lease is not None and not lease.complete
            self._return_allowance(call, 0 if lease is None else len(lease))
            if lease is None:
                self._ran_dry(call)
            else:
                if lease.dead_lettered and call.dead_letter is not None and self._dead_lettered is not None:
                    self._dead_lettered(lease.dead_lettered, call.dead_letter)
                await self._take(call, lease)
                if lease.complete:
                    self._nothing_left(call)
            self._calls.popleft()
            self._pushed.set()
            self.room_freed()

    async def _take(self, call: _LeaseCall, lease: LeaseSet) -> None:
        """Push what was leased; a set without rows only moved exhausted messages, and there may be more."""
        if not len(lease):
            self._wake_up()
            return
        full = len(lease) >= call.rows
        if full and self._ahead.probes(self._clock.now_ms()):
            self._ahead.found_many()
            self._dry_until = min(self._dry_until, lease.ts[-1])
        elif self._late_rows is None or not self._late_rows.bounded:
            self._adapt(call, len(lease))
        call.rows = call.size = 0
        self._last_lease = self._clock.now_ms()
        if self._late_rows is not None:
            self._late_rows.leased(lease.ts[-1], self._last_lease, full=full)
        self._inflight.add(lease, self._last_lease)
        self._metrics.add(LEASED, len(lease), self._topic.name)
        await self._push(lease)
        call.pushed = True

    async def _next_due(self) -> int | None:
        if not self._buckets:
            return None
        now = self._clock.now_ms()
        ts = await self._storage.next_ts(self._topic, self._buckets, now)
        if ts is None:
            return None
        if ts > self._dry_until:
            return self._alarms.common(ts - self._ahead.lead_ms(now), now)
        return now + RETRY_MS if self._dry_seen else now

    @property
    def _recheck_ms(self) -> int:
        return min(max(RECHECK_MS, 1_000 * self._alarms.count // LEASERS_PER_SECOND), RECHECK_MS_MAX)

    async def _rest(self, until: int | None, *, for_room: bool) -> None:
        """Wait for `until`, a notice or free credit; not for long, so that a jump of the clock is noticed."""
        now = self._clock.now_ms()
        times = (self._alarms.common(now + self._recheck_ms, now), until, self._noticed)
        self._resting_until, self._noticed = min(time for time in times if time is not None), None
        self._wants_room = for_room
        self._alarm.set(self._resting_until)
        await self._wake.wait()
        self._alarm.unset()
        self._resting_until = None
        self._wants_room = False
