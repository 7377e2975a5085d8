"""The pump of one subscribed consumer: leases what is due in its buckets and pushes it, as credit allows.

Two loops share a short queue of lease calls. The first starts a call whenever there is credit and something may
be due; the second waits for the calls in order and pushes what they brought. So the fsync of one lease is
waited for while the next is under way. When nothing is due the first rests until the earliest of: the next
message's time less the lead, a nudge, room, a new deal, and a look around at least every second.

A pump that has been without room for a moment, and has not caught up since, *lends*: others lease from its buckets too.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from dejaq import limits
from dejaq.broker.carrier.ahead import Ahead
from dejaq.broker.carrier.inflight import Inflight
from dejaq.broker.metrics import EXPIRED, LEASED, RETURNED, Metrics
from dejaq.domain.allowance import Allowance
from dejaq.domain.batch import LeaseRequest, LeaseSet
from dejaq.domain.topic import Topic
from dejaq.storage.base import Storage
from dejaq.timekeeper.alarm import Alarm
from dejaq.timekeeper.clock import Clock

CALLS_MAX = 3
RECHECK_MS = 1_000
# How long to leave a store alone that has something near but gives nothing.
RETRY_MS = 10
# For how long a pump may lack room before others help it.
LEND_MS = 20


@dataclass(frozen=True, slots=True)
class Flow:
    """What a consumer subscribed to."""

    credit_rows: int
    credit_bytes: int
    lease_ms: int
    prefetch_ms: int
    # How far the window may grow when more is coming than one lease can take.
    prefetch_ms_max: int = 0
    # The most messages a second; 0 for no limit.
    rate: int = 0

    @property
    def lead_ms(self) -> int:
        """How long before its time a message is gone for; the rest of the window gathers more into one lease."""
        return self.prefetch_ms - self.prefetch_ms // 4


@dataclass(slots=True)
class _Call:
    """One lease call under way and the credit that is set aside for it."""

    task: asyncio.Task[LeaseSet | None]
    rows: int
    size: int
    until: int
    window_ms: int
    nudges: int
    dead_letter: Topic | None = None
    pushing: bool = False


class Leaser:
    """Leases for one consumer and hands every lease set to `push`, in order."""

    def __init__(
        self,
        *,
        storage: Storage,
        clock: Clock,
        metrics: Metrics,
        topic: Topic,
        consumer: str,
        inflight: Inflight,
        push: Callable[[LeaseSet], Awaitable[None]],
        lending_changed: Callable[[], None] = lambda: None,
        dead_letter: Callable[[], Awaitable[Topic]] | None = None,
        buried: Callable[[int, Topic], None] | None = None,
        ahead: Ahead | None = None,
        confirm: Callable[[], None] = lambda: None,
    ) -> None:
        """`confirm` raises when nothing may be leased by the time that was just read."""
        self._confirm = confirm
        self._storage = storage
        self._clock = clock
        self._metrics = metrics
        self._topic = topic
        self._consumer = consumer
        self._inflight = inflight
        self._push = push
        # Where what was leased too often goes, in a topic that has a limit; and who wants to know of it.
        self._dead_letter = dead_letter
        self._buried = buried
        # Bounds what is held of a topic by priority.
        self._ahead = ahead
        self._flow = Flow(credit_rows=0, credit_bytes=0, lease_ms=limits.LEASE_MS_DEFAULT, prefetch_ms=0)
        self._lending_changed = lending_changed
        self.lending = False
        # At most so many rows, whatever the credit; None for no such bound.
        self.rows_max: int | None = None
        self._own: Sequence[int] = ()
        self._buckets: Sequence[int] = ()
        self._behind_since: int | None = None
        self._busy_until = 0
        self._allowance: Allowance | None = None
        self._calls: deque[_Call] = deque()
        self._wake = asyncio.Event()
        self._called = asyncio.Event()
        self._pushed = asyncio.Event()
        self._alarm = Alarm(clock, self._wake.set)
        self._nudges = 0
        self._window_ms = 0
        # The last call brought nothing up to this time, and nothing has changed since.
        self._dry = False
        self._dry_until = 0
        # While resting: until when, and whether for room or for time.
        self._resting_until: int | None = None
        self._wants_room = False

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
        """Whether it has room and nothing is due."""
        return self._resting_until is not None and not self._wants_room

    def assign(self, own: Sequence[int], lent: Sequence[int] = ()) -> None:
        """Lease from these buckets from now on: its own, and those of others that lack room."""
        self._own = own
        buckets = [*own, *lent] if lent else own
        if buckets != self._buckets:
            self._buckets = buckets
            self._nudged()

    def limit(self, rows_max: int | None) -> None:
        """Hold no more than so many rows at the consumer."""
        self.rows_max = rows_max
        self.room_freed()

    def be_busy(self, until: int) -> None:
        """Lease nothing until then, and lend at once."""
        self._busy_until = until
        if not self.lending:
            self._lend(True)
        self._wake.set()

    def set_flow(self, flow: Flow) -> None:
        """Take new credit, lease length and window."""
        self._flow = flow
        self._window_ms = flow.prefetch_ms
        if self._allowance is None or self._allowance.rate != flow.rate:
            self._allowance = Allowance(flow.rate, self._clock.now_ms()) if flow.rate else None
        self._nudged()

    def room_freed(self) -> None:
        """Rows were settled: go on if credit was what it waited for."""
        if self._wants_room:
            self._wake.set()

    def nudge(self, ts: int) -> None:
        """Something is now on the timeline at `ts` that was not there before."""
        if self._resting_until is None:
            self._nudged()
        elif self._wants_room:
            self._note_nudge()
        else:
            at = ts - self._flow.lead_ms
            if at <= self._clock.now_ms():
                self._nudged()
            elif at < self._resting_until:
                self._resting_until = at
                self._alarm.set(at)

    def _nudged(self) -> None:
        self._note_nudge()
        self._wake.set()

    def _note_nudge(self) -> None:
        """What calls under way say of the timeline no longer holds."""
        self._nudges += 1
        self._dry = False

    async def run(self) -> None:
        """Push what the consumer already holds, then lease and push until cancelled or until the store fails."""
        held = await self._storage.leases_of(self._topic, self._consumer, self._clock.now_ms())
        for lease in [lease for lease in held if lease.lease_id not in self._inflight]:
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

    async def give_back(self) -> None:
        """After `run`: undo the leases that were taken and not pushed, so that others get them at once.

        Raises when they have to run out by themselves.
        """
        while self._calls:
            call = self._calls.popleft()
            await asyncio.wait((call.task,))
            lease = None if call.task.cancelled() or call.task.exception() else call.task.result()
            if not lease or call.pushing:
                continue
            # Once the broker is cut off, another may have sent these leases to the consumer as its own; so they stand.
            self._confirm()
            await self._storage.recall(self._topic, lease.lease_id, self._consumer, None, self._clock.now_ms())
            self._metrics.add(RETURNED, len(lease), self._topic.name)

    async def caught_up(self) -> None:
        """Wait until the lease calls that are under way now are pushed."""
        waiting = {id(call) for call in self._calls}
        while waiting & {id(call) for call in self._calls}:
            self._pushed.clear()
            await self._pushed.wait()

    async def _lease_loop(self) -> None:
        while True:
            self._wake.clear()
            now = self._clock.now_ms()
            self._metrics.add(EXPIRED, self._inflight.expire(now), self._topic.name)
            rows, size = self._room(now)
            if len(self._calls) >= CALLS_MAX or rows <= 0 or size <= 0:
                await self._rest(self._fall_behind(now), for_room=True)
            elif self._dry or not self._buckets:
                self._caught_up()
                await self._rest(await self._next_due(), for_room=False)
                self._dry = False
            else:
                await self._call(rows=rows, size=size, now=now)

    def _fall_behind(self, now: int) -> int | None:
        """Note that room lacks, and lend when it has for a while; when to look again."""
        if self._behind_since is None:
            self._behind_since = now
        if not self.lending and now - self._behind_since >= LEND_MS:
            self._lend(True)
        times = [self._inflight.next_expiry(), None if self.lending else self._behind_since + LEND_MS]
        if self._busy_until > now:
            times.append(self._busy_until)
        if self._allowance is not None and (wait := self._allowance.wait_ms(now)):
            times.append(now + wait)
        return min((time for time in times if time is not None), default=None)

    def _caught_up(self) -> None:
        self._behind_since = None
        if self.lending:
            self._lend(False)

    def _lend(self, lending: bool) -> None:
        self.lending = lending
        self._lending_changed()

    def _room(self, now: int) -> tuple[int, int]:
        if self._busy_until > now:
            return 0, 0
        rows = self._flow.credit_rows if self.rows_max is None else min(self._flow.credit_rows, self.rows_max)
        if self._ahead is not None:
            rows = min(rows, self._ahead.rows_max(now))
        rows -= self._inflight.rows + sum(call.rows for call in self._calls)
        if self._allowance is not None:
            rows = min(rows, self._allowance.left(now))
        size = self._flow.credit_bytes - self._inflight.bytes - sum(call.size for call in self._calls)
        return min(rows, limits.LEASE_ROWS_MAX), min(size, limits.BATCH_BYTES_MAX)

    async def _call(self, *, rows: int, size: int, now: int) -> None:
        self._confirm()
        until = now + self._window_ms
        request = LeaseRequest(
            buckets=self._buckets,
            consumer=self._consumer,
            until=until,
            expires=until + self._flow.lease_ms,
            rows_max=rows,
            bytes_max=size,
            dead_letter=None if self._dead_letter is None else await self._dead_letter(),
        )
        if self._allowance is not None:
            self._allowance.take(rows, now)
        task = asyncio.get_running_loop().create_task(self._storage.lease(self._topic, request, now))
        call = _Call(
            task=task,
            rows=rows,
            size=size,
            until=until,
            window_ms=self._window_ms,
            nudges=self._nudges,
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

    def _return_allowance(self, call: _Call, got: int) -> None:
        if self._allowance is not None:
            self._allowance.take(got - call.rows, self._clock.now_ms())

    def _adapt(self, call: _Call, got: int) -> None:
        """Look further ahead while leases come back full, so that a spike is on the consumer before it is due.

        Calls overlap: only one that looked as far as the window now reaches tells that less would do.
        """
        if got >= call.rows:
            wider = min(2 * call.window_ms, max(self._flow.prefetch_ms, self._flow.prefetch_ms_max))
            if wider > self._window_ms:
                self._window_ms = wider
                self._nudged()
        elif call.window_ms >= self._window_ms:
            self._window_ms = max(self._window_ms // 2, self._flow.prefetch_ms)

    def _ran_dry(self, call: _Call) -> None:
        self._adapt(call, 0)
        if call.nudges == self._nudges:
            self._dry = True
            self._dry_until = call.until

    async def _push_loop(self) -> None:
        while True:
            while not self._calls:
                self._called.clear()
                await self._called.wait()
            call = self._calls[0]
            # Not `await task`: a cancelled pump must not cancel a commit, whose outcome would then be unknown.
            await asyncio.wait((call.task,))
            lease = call.task.result()
            self._return_allowance(call, 0 if lease is None else len(lease))
            if lease is None:
                self._ran_dry(call)
            else:
                if lease.dead and call.dead_letter is not None and self._buried is not None:
                    self._buried(lease.dead, call.dead_letter)
                await self._take(call, lease)
            self._calls.popleft()
            self._pushed.set()
            self.room_freed()

    async def _take(self, call: _Call, lease: LeaseSet) -> None:
        """Push what was leased; a set without rows only moved the dead, and there may be more."""
        if not len(lease):
            self._nudged()
            return
        self._adapt(call, len(lease))
        call.rows = call.size = 0
        call.pushing = True
        self._inflight.add(lease, self._clock.now_ms())
        self._metrics.add(LEASED, len(lease), self._topic.name)
        await self._push(lease)

    async def _next_due(self) -> int | None:
        if not self._buckets:
            return None
        now = self._clock.now_ms()
        ts = await self._storage.next_ts(self._topic, self._buckets, now)
        if ts is None:
            return None
        return ts - self._flow.lead_ms if ts > self._dry_until else now + RETRY_MS

    async def _rest(self, until: int | None, *, for_room: bool) -> None:
        """Wait for `until`, a nudge or room; at most a second, so that a jump of the clock is noticed."""
        latest = self._clock.now_ms() + RECHECK_MS
        self._resting_until = latest if until is None else min(until, latest)
        self._wants_room = for_room
        self._alarm.set(self._resting_until)
        await self._wake.wait()
        self._alarm.unset()
        self._resting_until = None
        self._wants_room = False
