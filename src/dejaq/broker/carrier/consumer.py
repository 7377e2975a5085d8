"""One consumer of one topic: its subscription, what it holds, and how it settles that."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from dejaq import limits
from dejaq.broker.background import Background
from dejaq.broker.carrier.admission import deletions_of, handed_times, release_times, rows_of
from dejaq.broker.carrier.ahead import Ahead
from dejaq.broker.carrier.balance import Reading
from dejaq.broker.carrier.dealer import Seat
from dejaq.broker.carrier.inflight import Inflight, mask_of
from dejaq.broker.carrier.leaser import Flow, Leaser
from dejaq.broker.carrier.pace import Pace
from dejaq.broker.metrics import (
    DEAD_LETTERED,
    DELETED,
    EXTENDED,
    PUSHED,
    RELEASED,
    RETURNED,
    Metrics,
    MetricSpec,
)
from dejaq.domain.batch import LeaseSet, Outcomes
from dejaq.domain.dead_letter import check_reason
from dejaq.domain.topic import Topic
from dejaq.domain.transitions import check_lease
from dejaq.errors import Code, DejaqError, InternalError, InvalidArgument, OutOfState, Unavailable, error_of
from dejaq.protocol.columns import (
    ranges_of_rows,
    write_push,
)
from dejaq.protocol.spliced import BrokerSent, push_frame
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.storage.base import DeletesMany, Storage
from dejaq.timekeeper.clock import Clock

if TYPE_CHECKING:
    from dejaq.broker.carrier.graves import Graves

log = logging.getLogger(__name__)

_COUNTED: dict[int, MetricSpec] = {
    carrier.DELETE: DELETED,
    carrier.EXTEND: EXTENDED,
    carrier.RELEASE: RELEASED,
    carrier.GIVE_BACK: RETURNED,
}
_EXHAUSTED, _REJECTED = "max_attempts", "rejected"


class Link(Protocol):
    """The consumer's session, as far as the consumer needs it."""

    async def send(self, frame: BrokerSent) -> None:
        """Send a frame; waits while the client is not reading."""

    def end(self, error: DejaqError) -> None:
        """End the session and tell the client why."""

    async def ask_back(self, lease_id: int, rows: Sequence[int]) -> list[int]:
        """Ask the client for rows that are not yet due; gives those it has let go of."""


class Consumer:
    """A named consumer in a live session."""

    def __init__(
        self,
        *,
        name: str,
        topic: Topic,
        link: Link,
        storage: Storage,
        clock: Clock,
        metrics: Metrics,
        background: Background,
        prefetch_ms_max: int,
        nudge_all: Callable[[int], None],
        graves: Graves,
        storage_failed: Callable[[], None],
        lending_changed: Callable[[], None] = lambda: None,
        confirm: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self.topic = topic
        self.inflight = Inflight()
        # The share it is to have now, beside those of the others; it starts at what the client asked for.
        self.weight = float(limits.WEIGHT_DEFAULT)
        self.start_weight = limits.WEIGHT_DEFAULT
        self.rack = ""
        self.pace = Pace(clock.now_ms())
        # How it did when that was last told to other brokers.
        self.told = Reading(name=name, start=self.start_weight, weight=self.weight, rate=0.0, lagging=False)
        self.busy_until = 0
        self._link = link
        self._storage = storage
        self._clock = clock
        self._metrics = metrics
        self._background = background
        self._prefetch_ms_max = prefetch_ms_max
        self._nudge_all = nudge_all
        self._graves = graves
        self._ahead = Ahead() if topic.by_priority else None
        self._storage_failed = storage_failed
        self._lending_changed = lending_changed
        self._confirm = confirm
        self._leaser: Leaser | None = None
        self._pump: asyncio.Task[None] | None = None
        self._before: asyncio.Task[None] | None = None

    @property
    def subscribed(self) -> bool:
        """Whether leases flow."""
        return self._leaser is not None

    @property
    def buckets(self) -> Sequence[int]:
        """The buckets that are dealt to it."""
        return self._leaser.buckets if self._leaser is not None else ()

    @property
    def seat(self) -> Seat:
        """What the dealer goes by, and what other brokers are told."""
        return Seat(
            self.name,
            weight=max(round(self.weight), 1),
            rack=self.rack,
            start=self.start_weight,
            rate=round(self.told.rate),
            lagging=self.told.lagging,
            lending=self.lending,
        )

    @property
    def lending(self) -> bool:
        """Whether it lacks room and others may lease from its buckets."""
        return self._leaser is not None and self._leaser.lending

    @property
    def idle(self) -> bool:
        """Whether it has room and nothing is due in its buckets."""
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
        """Give it nothing for a while, because it asks for that."""
        if not 1 <= proto.ms <= limits.BUSY_MS_MAX:
            raise InvalidArgument(f"a consumer is busy for 1 to {limits.BUSY_MS_MAX} ms, not {proto.ms}")
        self.busy_until = self._clock.now_ms() + proto.ms
        if self._leaser is not None:
            self._leaser.be_busy(self.busy_until)

    def follow(self, before: asyncio.Task[None] | None) -> None:
        """Wait for the farewell of who had the name before, so that what it leased last is not missed."""
        self._before = before

    def put_out(self) -> asyncio.Task[None] | None:
        """End this session because another has taken the name; gives its farewell."""
        self._link.end(
            OutOfState(
                f"another session took over as consumer {self.name!r} of {self.topic.name!r}: a name is one consumer"
            )
        )
        return self.unsubscribe()

    def subscribe(self, proto: carrier.Subscribe) -> None:
        """Start the flow of leases, or change its terms."""
        flow = self._flow_of(proto)
        if self._leaser is None:
            self._leaser = Leaser(
                storage=self._storage,
                clock=self._clock,
                metrics=self._metrics,
                topic=self.topic,
                consumer=self.name,
                inflight=self.inflight,
                push=self._push,
                lending_changed=self._lending_changed,
                dead_letter=self._dead_letter if self.topic.settings.max_attempts else None,
                buried=self._buried,
                ahead=self._ahead,
                confirm=self._confirm,
            )
            self._pump = self._background.spawn(
                self._run(self._leaser, self._before), name=f"pump {self.topic.name}/{self.name}"
            )
        self._leaser.set_flow(flow)
        self.rack = proto.rack
        self.start_weight = proto.weight or limits.WEIGHT_DEFAULT
        self.weight = float(self.start_weight)

    def _flow_of(self, proto: carrier.Subscribe) -> Flow:
        code = check_lease(proto.lease_ms, max_lease_ms=self.topic.settings.max_lease_ms)
        if code is not Code.OK:
            raise error_of(
                code,
                f"a lease of {proto.lease_ms} ms is not from {limits.LEASE_MS_MIN} to "
                f"{self.topic.settings.max_lease_ms} ms",
            )
        if not 1 <= proto.credit_rows <= limits.CREDIT_ROWS_MAX:
            raise InvalidArgument(f"credit_rows={proto.credit_rows} is not from 1 to {limits.CREDIT_ROWS_MAX}")
        if proto.prefetch_ms > limits.PREFETCH_MS_MAX:
            raise InvalidArgument(f"prefetch_ms={proto.prefetch_ms} is above {limits.PREFETCH_MS_MAX}")
        if proto.weight > limits.WEIGHT_MAX:
            raise InvalidArgument(f"weight={proto.weight} is above {limits.WEIGHT_MAX}")
        if proto.rate > limits.CONSUMER_RATE_MAX:
            raise InvalidArgument(f"rate={proto.rate} is above {limits.CONSUMER_RATE_MAX}")
        if len(proto.rack) > limits.RACK_CHARS_MAX or not proto.rack.isprintable():
            raise InvalidArgument(f"a rack is at most {limits.RACK_CHARS_MAX} printable characters")
        return Flow(
            credit_rows=proto.credit_rows,
            credit_bytes=proto.credit_bytes or limits.CREDIT_BYTES_DEFAULT,
            lease_ms=proto.lease_ms,
            prefetch_ms=0 if self.topic.by_priority else min(proto.prefetch_ms, self._prefetch_ms_max),
            prefetch_ms_max=0 if self.topic.by_priority else self._prefetch_ms_max,
            rate=proto.rate,
        )

    def unsubscribe(self) -> asyncio.Task[None] | None:
        """Stop the flow; what was leased and not pushed goes back, which the task that it gives waits for."""
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
            self._link.end(Unavailable("leases cannot be given now; reconnect to go on", details=str(error)))
        except Exception:
            log.exception("the pump of %s/%s failed", self.topic.name, self.name)
            self._link.end(InternalError())

    async def _farewell(self, leaser: Leaser, pump: asyncio.Task[None]) -> None:
        await asyncio.wait((pump,))
        try:
            await leaser.give_back()
        except DejaqError as error:
            # The leases stand and run out by themselves.
            log.info("leases of %s/%s were not given back: %s", self.topic.name, self.name, error)
        self._nudge_all(self._clock.now_ms())

    def assign(self, own: Sequence[int], lent: Sequence[int] = ()) -> None:
        """Lease from these buckets: its own, and those of others that lack room."""
        if self._leaser is not None:
            self._leaser.assign(own, lent)

    def nudge(self, ts: int) -> None:
        """Something is now on the timeline at `ts`."""
        if self._leaser is not None:
            self._leaser.nudge(ts)

    async def _push(self, lease: LeaseSet) -> None:
        self._confirm()
        frame = carrier.BrokerFrame()
        write_push(frame.push, lease)
        frame.push.by_priority = self.topic.by_priority
        self._metrics.add(PUSHED, len(lease), self.topic.name)
        self._metrics.late(self.topic.name, lease.ts, self._clock.now_ms())
        await self._link.send(push_frame(frame, lease))

    async def _dead_letter(self) -> Topic:
        return await self._graves.topic_for(self.topic)

    def _buried(self, count: int, grave: Topic) -> None:
        self._metrics.add(DEAD_LETTERED, count, self.topic.name, _EXHAUSTED)
        self._graves.came(grave)

    async def settle(self, proto: carrier.Settle) -> Outcomes:
        """Delete, extend, release or give back rows of one lease; OK or LEASE_LOST for each."""
        ranges = rows_of(proto)
        now = self._clock.now_ms()
        due_ms = self.inflight.due_ms(proto.lease)
        mask = None if ranges is None else mask_of(ranges)
        arguments = (self.topic, proto.lease, self.name, ranges)
        if proto.kind == carrier.DELETE:
            outcomes = await self._storage.delete(*arguments, now, handed_times(proto, ranges))
        elif proto.kind == carrier.EXTEND:
            expires = now + self._checked_lease(proto.lease_ms)
            outcomes = await self._storage.extend(*arguments, expires, now)
            self.inflight.extend(proto.lease, mask, expires)
            mask = mask_of((row, row + 1) for row in outcomes.failed)
        elif proto.kind == carrier.RELEASE:
            times = release_times(self.topic, proto, ranges, now)
            outcomes = await self._storage.release(*arguments, times, now, handed_times(proto, ranges))
            self._nudge_all(times if isinstance(times, int) else min(times))
        elif proto.kind == carrier.GIVE_BACK:
            outcomes = await self._storage.recall(*arguments, now)
            self._nudge_all(now)
        elif proto.kind == carrier.REJECT:
            check_reason(proto.reason)
            handed = handed_times(proto, ranges)
            grave = await self._dead_letter()
            outcomes = await self._storage.reject(*arguments, grave, proto.reason, self._clock.now_ms(), handed)
            self._graves.came(grave)
        else:
            raise InvalidArgument("a settle needs a kind: delete, extend, release, give back or reject")
        self.settled(proto.lease, mask)
        asked = outcomes.count if ranges is None else sum(end - start for start, end in ranges)
        done = asked - len(outcomes.codes)
        if proto.kind == carrier.REJECT:
            self._metrics.add(DEAD_LETTERED, done, self.topic.name, _REJECTED)
        else:
            self._metrics.add(_COUNTED[proto.kind], done, self.topic.name)
        if self._ahead is not None and proto.kind != carrier.EXTEND:
            self._ahead.settled(done, now)
        if proto.kind in (carrier.DELETE, carrier.RELEASE, carrier.REJECT):
            self._keep_pace(proto, done, due_ms)
        return outcomes

    def _keep_pace(self, proto: carrier.Settle, done: int, due_ms: int | None) -> None:
        handed_ms = min(proto.handed_us, default=0) / 1_000
        self.pace.settled(done, handed_ms - due_ms if due_ms and handed_ms else 0.0)

    async def delete(self, proto: carrier.Deletes) -> Outcomes:
        """Delete rows of several leases; OK or LEASE_LOST for each, numbered through all of them."""
        deletions = deletions_of(proto)
        now = self._clock.now_ms()
        due = [self.inflight.due_ms(deletion.lease_id) for deletion in deletions]
        storage = self._storage
        if isinstance(storage, DeletesMany):
            answers = await storage.delete_many(self.topic, self.name, deletions, now)
        else:
            calls = [
                storage.delete(self.topic, one.lease_id, self.name, one.rows, now, one.handed_us) for one in deletions
            ]
            answers = await asyncio.gather(*calls)
        total = Outcomes(0)
        for settle, deletion, due_ms, outcomes in zip(proto.settles, deletions, due, answers, strict=True):
            ranges = deletion.rows or ()
            self.settled(deletion.lease_id, mask_of(ranges))
            asked = sum(end - start for start, end in ranges)
            self._keep_pace(settle, asked - len(outcomes.codes), due_ms)
            if outcomes.codes:
                rows = [row for start, end in ranges for row in range(start, end)]
                places = enumerate(rows, total.count)
                total.codes.update({place: outcomes.codes[row] for place, row in places if row in outcomes.codes})
            total.count += asked
        done = total.count - len(total.codes)
        self._metrics.add(DELETED, done, self.topic.name)
        if self._ahead is not None:
            self._ahead.settled(done, now)
        return total

    def _checked_lease(self, lease_ms: int) -> int:
        code = check_lease(lease_ms, max_lease_ms=self.topic.settings.max_lease_ms)
        if code is not Code.OK:
            raise error_of(code)
        return lease_ms

    async def ask_back(self, lease_id: int, rows: Sequence[int]) -> list[int]:
        """Ask for rows that are not yet due; gives those that user code will not see."""
        if lease_id not in self.inflight and self._leaser is not None:
            # The lease is committed but its push is not out yet; asking first would find nothing.
            await self._leaser.caught_up()
        wanted = set(rows)
        return sorted(wanted.intersection(await self._link.ask_back(lease_id, rows)))

    async def reclaim(self, *, before: int, keep: int) -> int:
        """Take back what has been with the client since `before` and user code has not seen, but for `keep` rows.

        It then holds no more than what user code has, so that the rest is for others; says how many came back.
        """
        overdue = self.inflight.overdue(before)
        excess = sum(mask.bit_count() for _, mask in overdue) - keep
        given: list[tuple[int, list[int]]] = []
        for lease_id, mask in overdue:
            if excess <= 0:
                break
            rows = _rows_of(mask)[-excess:]
            excess -= len(rows)
            given.append((lease_id, await self.ask_back(lease_id, rows)))
        count = sum(len(rows) for _, rows in given)
        if count:
            self.limit(max(self.inflight.rows - count, 1))
            for lease_id, rows in given:
                if rows:
                    await self.undo(lease_id, rows)
            self._nudge_all(self._clock.now_ms())
        return count

    def forget(self, lease_id: int, rows: Sequence[int]) -> None:
        """Stop counting rows that the client has let go of and whose lease another broker undoes."""
        self.settled(lease_id, mask_of(ranges_of_rows(rows)))

    async def undo(self, lease_id: int, rows: Sequence[int]) -> None:
        """Undo the lease on rows that the client has let go of."""
        ranges = ranges_of_rows(rows)
        outcomes = await self._storage.recall(self.topic, lease_id, self.name, ranges, self._clock.now_ms())
        self.settled(lease_id, mask_of(ranges))
        self._metrics.add(RETURNED, len(rows) - len(outcomes.codes), self.topic.name)

    async def take_back(self, lease_id: int, rows: Sequence[int]) -> None:
        """Undo the lease on rows that the client let go of unasked, and offer them again."""
        known = [row for row in rows if row < limits.LEASE_ROWS_MAX]
        if known:
            await self.undo(lease_id, known)
            self._nudge_all(self._clock.now_ms())

    def settled(self, lease_id: int, mask: int | None) -> None:
        """Rows have left the lease, all of them when `mask` is None: there is room for others."""
        self.inflight.settle(lease_id, mask)
        if self._leaser is not None:
            self._leaser.room_freed()


def _rows_of(mask: int) -> list[int]:
    return [row for row in range(mask.bit_length()) if mask >> row & 1]
