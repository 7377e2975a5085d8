"""One consumer of one topic: its subscription, what it holds, and how it settles that."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from dejaq import limits
from dejaq.broker.assignment.assignment import Seat
from dejaq.broker.assignment.balance import PaceReading
from dejaq.broker.background import Background
from dejaq.broker.delivery.continuing import recall_known
from dejaq.broker.delivery.dead_letters import DeadLetterTopics
from dejaq.broker.delivery.flow import flow_of
from dejaq.broker.delivery.inflight import Inflight, mask_of, rows_in
from dejaq.broker.delivery.leaser import Leaser
from dejaq.broker.delivery.pace import Pace
from dejaq.broker.delivery.peers import ReleasedRows
from dejaq.broker.delivery.prepared import PreparedChange, only
from dejaq.broker.delivery.priority_window import PriorityWindow
from dejaq.broker.delivery.settlements import (
    checked_lease,
    deletes_of,
    extends_of,
    handed_times,
    joined,
    release_times,
    rows_of,
)
from dejaq.broker.doctor import cannot_serve
from dejaq.broker.metrics import (
    DEAD_LETTERED,
    DELETED,
    EXTENDED,
    PUSHED,
    RECALLED,
    RELEASED,
    Metrics,
    MetricSpec,
)
from dejaq.domain.batch import LeaseSet, Outcomes, RowRange, ranges_of_rows
from dejaq.domain.changes import Delete, Extend, Recall, Reject, Release
from dejaq.domain.context import CallContext
from dejaq.domain.dead_letter import EXHAUSTED, Cause
from dejaq.domain.topic import Topic
from dejaq.errors import (
    DejaqError,
    InternalError,
    InvalidArgument,
    OutOfState,
    Refused,
    StoreError,
    Unavailable,
)
from dejaq.protocol.columns import write_push
from dejaq.protocol.spliced import BrokerSent, push_frame
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.storage.base import Storage, apply_one
from dejaq.timekeeper.alarm import within
from dejaq.timekeeper.alarms import Alarms
from dejaq.timekeeper.clock import Clock

log = logging.getLogger(__name__)

# How long an owner waits for a consumer to release a message: for the running push, until the client
# reads, and for its answer, all together.
RECALL_SECONDS = 0.2

_COUNTED: dict[int, MetricSpec] = {
    carrier.EXTEND: EXTENDED,
    carrier.RELEASE: RELEASED,
    carrier.RECALL: RECALLED,
}
_EXHAUSTED, _REJECTED = "max_attempts", "rejected"
_LEASING = CallContext.internal("lease")
_BALANCING = CallContext.internal("balance")


class ClientLink(Protocol):
    """The consumer's session, as far as the consumer needs it."""

    async def send(self, frame: BrokerSent) -> None:
        """Send a frame; waits while the client is not reading."""

    def end(self, error: DejaqError) -> None:
        """End the session and send the reason to the client."""

    async def request_recall(self, lease_id: int, rows: Sequence[int]) -> list[int]:
        """Ask the client to release rows that are not yet due; returns the rows it released."""


class ConnectedConsumer:
    """A named consumer in a live session."""

    def __init__(
        self,
        *,
        context: CallContext,
        name: str,
        topic: Topic,
        link: ClientLink,
        storage: Storage,
        clock: Clock,
        metrics: Metrics,
        background: Background,
        prefetch_ms_max: int,
        notify_returned: Callable[[int, Collection[int] | None], None],
        dead_letters: DeadLetterTopics,
        storage_failed: Callable[[], None],
        sharing_changed: Callable[[ConnectedConsumer], None] = lambda _: None,
        confirm: Callable[[], None] = lambda: None,
        alarms: Alarms | None = None,
    ) -> None:
        self.name = name
        self.topic = topic
        self.inflight = Inflight()
        # The share it is to have now, beside those of the others; it starts at what the client asked for.
        self.weight = float(limits.WEIGHT_DEFAULT)
        self.start_weight = limits.WEIGHT_DEFAULT
        self.rack = ""
        self.pace = Pace(clock.now_ms())
        # Its pace as it was last published to the other brokers, and when.
        self.published_ms = clock.now_ms()
        self.published = PaceReading(name=name, start=self.start_weight, weight=self.weight, rate=0.0, lagging=False)
        self.busy_until = 0
        self._context = context
        self._link = link
        self._storage = storage
        self._clock = clock
        self._metrics = metrics
        self._background = background
        self._prefetch_ms_max = prefetch_ms_max
        # Notifies the consumers that may lease rows that it held, and that are free from a time on.
        self._returned: Callable[[int], None] = lambda ts: notify_returned(ts, self.inflight.buckets)
        self._dead_letters = dead_letters
        self._priority_window = PriorityWindow() if topic.by_priority else None
        self._storage_failed = storage_failed
        self._sharing_changed = sharing_changed
        self._confirm = confirm
        self._alarms = alarms
        self._leaser: Leaser | None = None
        self._pump: asyncio.Task[None] | None = None
        self._before: asyncio.Task[None] | None = None

    @property
    def subscribed(self) -> bool:
        """Whether leases flow."""
        return self._leaser is not None

    @property
    def buckets(self) -> Sequence[int]:
        """The buckets that are assigned to it."""
        return self._leaser.buckets if self._leaser is not None else ()

    @property
    def seat(self) -> Seat:
        """What the assignment needs, and what other brokers read."""
        return Seat(
            self.name,
            weight=max(round(self.weight), 1),
            rack=self.rack,
            start=self.start_weight,
            rate=round(self.published.rate),
            lagging=self.published.lagging,
            sharing=self.sharing,
        )

    @property
    def sharing(self) -> bool:
        """Whether it has no free credit and others may lease from its buckets."""
        return self._leaser is not None and self._leaser.sharing

    @property
    def idle(self) -> bool:
        """Whether it has free credit and nothing is due in its buckets."""
        return self._leaser is not None and self._leaser.idle

    @property
    def rows_max(self) -> int | None:
        """The bound that was set on what it holds, below its credit."""
        return None if self._leaser is None else self._leaser.rows_max

    @property
    def credit_rows(self) -> int:
        """What its client is willing to hold."""
        return 0 if self._leaser is None else self._leaser.credit_rows

    def limit(self, rows_max: int | None) -> None:
        """Bound what it holds, below its credit; None for no bound."""
        if self._leaser is not None:
            self._leaser.limit(rows_max)

    def busy(self, proto: carrier.Busy) -> None:
        """Lease nothing to it for a while, because the client asks for that."""
        if not 1 <= proto.ms <= limits.BUSY_MS_MAX:
            raise InvalidArgument(f"a consumer is busy for 1 to {limits.BUSY_MS_MAX} ms, not {proto.ms}")
        self.busy_until = self._clock.now_ms() + proto.ms
        if self._leaser is not None:
            self._leaser.be_busy(self.busy_until)

    def follow(self, before: asyncio.Task[None] | None) -> None:
        """Wait for the earlier session of this name to end, so that its last leases are found."""
        self._before = before

    def put_out(self) -> asyncio.Task[None] | None:
        """End this session because another has taken the name; returns the task that recalls its leases."""
        self._link.end(
            OutOfState(
                f"another session took over as consumer {self.name!r} of {self.topic.name!r}: a name is one consumer"
            )
        )
        return self.unsubscribe()

    def subscribe(self, proto: carrier.Subscribe) -> None:
        """Start the flow of leases, or change its terms."""
        flow = flow_of(proto, self.topic, self._prefetch_ms_max)
        if self._leaser is None:
            self._leaser = Leaser(
                context=self._context,
                storage=self._storage,
                clock=self._clock,
                metrics=self._metrics,
                topic=self.topic,
                consumer=self.name,
                inflight=self.inflight,
                push=self._push,
                sharing_changed=lambda: self._sharing_changed(self),
                dead_letter=self._dead_letter if self.topic.settings.max_attempts else None,
                dead_lettered=self._dead_lettered,
                priority_window=self._priority_window,
                confirm=self._confirm,
                alarms=self._alarms,
            )
            self._pump = self._background.spawn(
                self._run(self._leaser, self._before), name=f"pump {self.topic.name}/{self.name}"
            )
        self._leaser.set_flow(flow)
        self.rack = proto.rack
        self.start_weight = proto.weight or limits.WEIGHT_DEFAULT
        self.weight = float(self.start_weight)

    def unsubscribe(self) -> asyncio.Task[None] | None:
        """Stop the flow; returns the task that recalls what was leased and not pushed."""
        leaser, pump = self._leaser, self._pump
        self._leaser = self._pump = None
        if leaser is None or pump is None:
            return self._before
        pump.cancel()
        self._before = self._background.spawn(
            self._farewell(leaser, pump), name=f"farewell {self.topic.name}/{self.name}"
        )
        return self._before

    async def _run(self, leaser: Leaser, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait((before,))
        try:
            await leaser.run()
        except DejaqError as error:
            self._storage_failed()
            if isinstance(error, StoreError):
                self._link.end(cannot_serve(error))
            else:
                self._link.end(Unavailable("leases cannot be given now; reconnect to go on", details=str(error)))
        except Exception:
            log.exception("the pump of %s/%s failed", self.topic.name, self.name)
            self._link.end(InternalError())

    async def _farewell(self, leaser: Leaser, pump: asyncio.Task[None]) -> None:
        await asyncio.wait((pump,))
        recalled = True
        try:
            recalled = await leaser.recall_unpushed()
        except DejaqError as error:
            # The leases stay and expire.
            log.info("leases of %s/%s were not recalled: %s", self.topic.name, self.name, error)
        if recalled:
            self._returned(self._clock.now_ms())

    def assign(self, own: Sequence[int], shared: Sequence[int] = ()) -> None:
        """Lease from these buckets: its own, and those of consumers without free credit."""
        if self._leaser is not None:
            self._leaser.assign(own, shared)

    def notify(self, ts: int) -> None:
        """Notify the pump of a new message at `ts`."""
        if self._leaser is not None:
            self._leaser.notify(ts)

    async def _push(self, lease: LeaseSet) -> None:
        self._confirm()
        frame = carrier.BrokerFrame()
        write_push(frame.push, lease)
        frame.push.by_priority = self.topic.by_priority
        self._metrics.add(PUSHED, len(lease), self.topic.name)
        self._metrics.late(self.topic.name, lease.ts, self._clock.now_ms())
        await self._link.send(push_frame(frame, lease))

    async def _dead_letter(self, context: CallContext = _LEASING) -> Topic:
        return await self._dead_letters.topic_for(context, self.topic)

    def _dead_lettered(self, count: int, dead_letter_topic: Topic) -> None:
        self._metrics.add(DEAD_LETTERED, count, self.topic.name, _EXHAUSTED)
        self._dead_letters.came(dead_letter_topic)

    async def settle(self, context: CallContext, proto: carrier.Settle) -> Outcomes:
        """Delete, extend, release, recall or reject rows of one lease; OK or LEASE_LOST for each."""
        if proto.kind == carrier.DELETE:
            return await self.prepare_delete(proto).apply(self._storage, context)
        ranges = rows_of(proto)
        now = self._clock.now_ms()
        due_ms = self.inflight.due_ms(proto.lease)
        mask = None if ranges is None else mask_of(ranges)
        rows = (self.topic, proto.lease, self.name, ranges)
        if proto.kind == carrier.EXTEND:
            expires = now + checked_lease(self.topic, proto.lease_ms)
            self.inflight.extending(proto.lease, expires)
            outcomes = await apply_one(self._storage, Extend(*rows, expires), now, context)
            self.inflight.extend(proto.lease, mask, expires)
            mask = mask_of((row, row + 1) for row in outcomes.failed)
        elif proto.kind == carrier.RELEASE:
            times = release_times(self.topic, proto, ranges, now)
            outcomes = await apply_one(self._storage, Release(*rows, times, handed_times(proto, ranges)), now, context)
            self._returned(times if isinstance(times, int) else min(times))
        elif proto.kind == carrier.RECALL:
            first_ms = self.inflight.first_ms(proto.lease)
            ends = self.inflight.ends_of(proto.lease, mask)
            outcomes = await recall_known(self._storage, Recall(*rows), ends, now, context)
            self._returned(first_ms or now)
        elif proto.kind == carrier.REJECT:
            cause = Cause(proto.reason, proto.error, proto.traceback)
            cause.check()
            handed = handed_times(proto, ranges)
            dead_letter_topic = await self._dead_letter(context)
            reject = Reject(*rows, dead_letter_topic, cause, handed)
            outcomes = await apply_one(self._storage, reject, self._clock.now_ms(), context)
            self._dead_letters.came(dead_letter_topic)
        else:
            raise InvalidArgument("a settle needs a kind: delete, extend, release, recall or reject")
        done = self._rows_done(proto.lease, ranges, mask, outcomes)
        if proto.kind == carrier.REJECT:
            why = _EXHAUSTED if proto.reason == EXHAUSTED else _REJECTED
            self._metrics.add(DEAD_LETTERED, done, self.topic.name, why)
        else:
            self._metrics.add(_COUNTED[proto.kind], done, self.topic.name)
        if self._priority_window is not None and proto.kind != carrier.EXTEND:
            self._priority_window.settled(done, now)
        if proto.kind in (carrier.RELEASE, carrier.REJECT):
            self._keep_pace(proto, done, due_ms)
        return outcomes

    def _rows_done(self, lease_id: int, ranges: Sequence[RowRange] | None, mask: int | None, outcomes: Outcomes) -> int:
        """Stop counting rows that were settled; returns for how many of them that succeeded."""
        self.settled(lease_id, mask)
        asked = outcomes.count if ranges is None else sum(end - start for start, end in ranges)
        return asked - len(outcomes.codes)

    def prepare_delete(self, proto: carrier.Settle) -> PreparedChange:
        """Delete rows of one lease; OK or LEASE_LOST for each."""
        ranges = rows_of(proto)
        now = self._clock.now_ms()
        due_ms = self.inflight.due_ms(proto.lease)
        mask = None if ranges is None else mask_of(ranges)
        delete = Delete(self.topic, proto.lease, self.name, ranges, handed_times(proto, ranges))

        def finish(answers: Sequence[Outcomes | Refused]) -> Outcomes:
            outcomes = only(answers)
            done = self._rows_done(proto.lease, ranges, mask, outcomes)
            self._deleted(done, now)
            self._keep_pace(proto, done, due_ms)
            return outcomes

        return PreparedChange((delete,), now, finish)

    def _keep_pace(self, proto: carrier.Settle, done: int, due_ms: int | None) -> None:
        handed_ms = min(proto.handed_us, default=0) / 1_000
        wait_ms = handed_ms - due_ms if due_ms and handed_ms else 0.0
        self.pace.settled(done, wait_ms)
        if self._leaser is not None:
            self._leaser.settled(done, wait_ms, self._clock.now_ms() - handed_ms)

    def prepare_deletes(self, proto: carrier.Deletes) -> PreparedChange:
        """Delete rows of several leases; OK or LEASE_LOST for each, numbered through all of them."""
        deletes = deletes_of(proto, self.topic, self.name)
        now = self._clock.now_ms()
        due = [self.inflight.due_ms(delete.lease_id) for delete in deletes]

        def finish(answers: Sequence[Outcomes | Refused]) -> Outcomes:
            total, every = joined(deletes, answers)
            for settle, delete, due_ms, outcomes in zip(proto.settles, deletes, due, every, strict=True):
                done = self._rows_done(delete.lease_id, delete.rows, mask_of(delete.rows or ()), outcomes)
                self._keep_pace(settle, done, due_ms)
            self._deleted(total.count - len(total.codes), now)
            return total

        return PreparedChange(deletes, now, finish)

    async def extend(self, context: CallContext, proto: carrier.Extends) -> Outcomes:
        """Extend rows of several leases; OK or LEASE_LOST for each, numbered through all of them."""
        now = self._clock.now_ms()
        extends = extends_of(proto, self.topic, self.name, now)
        for one in extends:
            self.inflight.extending(one.lease_id, one.expires)
        total, every = joined(extends, await self._storage.apply(extends, now, context))
        for extend, outcomes in zip(extends, every, strict=True):
            self.inflight.extend(extend.lease_id, mask_of(extend.rows or ()), extend.expires)
            self.settled(extend.lease_id, mask_of((row, row + 1) for row in outcomes.failed))
        self._metrics.add(EXTENDED, total.count - len(total.codes), self.topic.name)
        return total

    def _deleted(self, done: int, now: int) -> None:
        self._metrics.add(DELETED, done, self.topic.name)
        if self._priority_window is not None:
            self._priority_window.settled(done, now)

    async def request_recall(self, lease_id: int, rows: Sequence[int]) -> list[int]:
        """Ask the client to release rows that are not yet due; returns those it released in time."""
        asking = asyncio.ensure_future(self._request_recall(lease_id, rows))
        try:
            return await within(self._clock, RECALL_SECONDS, asking) or []
        finally:
            asking.cancel()

    async def release_rows(self, lease_id: int, rows: Sequence[int]) -> ReleasedRows:
        """Ask the client to release rows that are not yet due; returns those that it released."""
        return self._released(lease_id, await self.request_recall(lease_id, rows))

    def _released(self, lease_id: int, rows: Sequence[int]) -> ReleasedRows:
        return ReleasedRows(rows, self.inflight.ends_of(lease_id, mask_of(ranges_of_rows(rows))))

    async def _request_recall(self, lease_id: int, rows: Sequence[int]) -> list[int]:
        if lease_id not in self.inflight and self._leaser is not None:
            # The lease is committed but its push is not sent yet; the client would not know the lease.
            await self._leaser.caught_up()
        wanted = set(rows)
        return sorted(wanted.intersection(await self._link.request_recall(lease_id, rows)))

    async def recall_overdue(self, *, before: int, keep: int) -> int:
        """Recall rows that the client has had since `before` and user code has not seen, except for `keep` rows.

        The client then holds no more than user code has, and others get the rest; returns how many rows were recalled.
        """
        overdue = self.inflight.overdue(before)
        excess = sum(mask.bit_count() for _, mask in overdue) - keep
        given: list[tuple[int, ReleasedRows]] = []
        for lease_id, mask in overdue:
            if excess <= 0:
                break
            rows = rows_in(mask)[-excess:]
            excess -= len(rows)
            given.append((lease_id, await self.release_rows(lease_id, rows)))
        count = sum(len(released.rows) for _, released in given)
        if count:
            self.limit(max(self.inflight.rows - count, 1))
            for lease_id, released in given:
                if released.rows:
                    await self.recall(_BALANCING, lease_id, released)
            self._returned(self._clock.now_ms())
        return count

    def forget(self, lease_id: int, rows: Sequence[int]) -> None:
        """Stop counting rows that the client has released and whose lease another broker recalls."""
        self.settled(lease_id, mask_of(ranges_of_rows(rows)))

    async def recall(self, context: CallContext, lease_id: int, released: ReleasedRows) -> None:
        """Recall the lease on rows that the client has released, unless a later session of this name has them."""
        change = Recall(self.topic, lease_id, self.name, ranges_of_rows(released.rows))
        outcomes = await recall_known(self._storage, change, released.ends, self._clock.now_ms(), context)
        recalled = [row for row in released.rows if row not in outcomes.codes]
        self.settled(lease_id, mask_of(ranges_of_rows(recalled)))
        self._metrics.add(RECALLED, len(recalled), self.topic.name)

    async def recall_late(self, lease_id: int, rows: Sequence[int]) -> None:
        """Recall the lease on rows that the client released too late to be waited for, and offer them again."""
        known = [row for row in rows if row < limits.LEASE_ROWS_MAX]
        if known:
            await self.recall(self._context, lease_id, self._released(lease_id, known))
            self._returned(self._clock.now_ms())

    def settled(self, lease_id: int, mask: int | None) -> None:
        """Rows have left the lease, all of them when `mask` is None: their credit is free."""
        self.inflight.settle(lease_id, mask)
        if self._leaser is not None:
            self._leaser.room_freed()
