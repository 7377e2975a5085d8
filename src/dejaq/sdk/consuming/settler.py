"""Sends deletes, releases and extensions to the broker, gathered by lease."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dejaq.domain.dead_letter import Cause
from dejaq.domain.message import Message
from dejaq.errors import Code, DejaqError, Indefinite
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.sdk.bodies.large import LargeBodyClient
from dejaq.sdk.consuming.grant import Delivery, DeliveryPart, Grant
from dejaq.sdk.consuming.shared_settles import SharedSettles
from dejaq.sdk.gathering import copy_of
from dejaq.sdk.session.connection import BrokerAnswer, Connection

if TYPE_CHECKING:
    from dejaq.sdk.changing.transaction import Transactor

LINGER_SECONDS = 0.001

IdsOf = Callable[[Sequence[int]], list[str]]
Lookup = Callable[[Sequence[str]], Awaitable[list[Message | None]]]


@dataclass(frozen=True, slots=True)
class Settlement:
    """One kind of change: EXTEND with the new length, RELEASE with the new time, REJECT with the cause."""

    kind: carrier.SettleKind
    lease_ms: int = 0
    ts: int = 0
    cause: Cause | None = None

    def done(self, message: Message | None) -> bool:
        """Whether `message`, which was read after the lease was lost, shows that an earlier try of this change
        succeeded.
        """
        if self.kind in (carrier.DELETE, carrier.REJECT):
            return message is None
        if self.kind == carrier.RELEASE:
            return message is not None and message.ts == self.ts and not message.lock_consumer
        return False


DELETE = Settlement(carrier.DELETE)
# The changes that end user code's work on a message.
_FINAL = (carrier.DELETE, carrier.RELEASE, carrier.REJECT)
_LOOK_SECONDS_MIN, _LOOK_SECONDS_MAX = 0.02, 0.5
GIVE_BACK = Settlement(carrier.RECALL)


@dataclass(frozen=True, slots=True)
class SettledRow:
    """One row that user code got at `handed_us` of the broker's clock, by its place in a delivery."""

    delivery: Delivery
    index: int
    handed_us: int


@dataclass(slots=True, eq=False)
class _Group:
    """Rows of one lease that are settled in the same way, and the futures of the callers that wait for each row."""

    grant: Grant
    settlement: Settlement
    rows: dict[int, tuple[SettledRow, list[asyncio.Future[Code]]]] = field(default_factory=dict)

    def ids(self, numbers: Sequence[int]) -> list[str]:
        """The ids of some of the rows."""
        return [row.delivery.id_at(row.index) for row, _ in map(self.rows.__getitem__, numbers)]

    def handed_us(self, numbers: Sequence[int]) -> list[int]:
        """When user code got each row, or one time when it is the same for all."""
        times = [self.rows[number][0].handed_us for number in numbers]
        return times if any(time != times[0] for time in times) else times[:1]

    def answer(self, codes: Mapping[int, Code] | Exception) -> None:
        """Give every caller the code of its row, or the error of all."""
        for row, (_, callers) in self.rows.items():
            for caller in callers:
                if caller.done():
                    continue
                if isinstance(codes, Exception):
                    caller.set_exception(copy_of(codes) if isinstance(codes, DejaqError) else codes)
                else:
                    caller.set_result(codes.get(row, Code.OK))


class Settler:
    """Settles single rows, with one frame per lease for all rows of one moment, and whole portions at once.

    When the session broke before an answer, the settlement is repeated under the same lease. LEASE_LOST as the answer
    to a repeat does not show whether the first try succeeded or the lease expired, so the message is read: a delete or
    reject succeeded exactly when the message is gone, and a release when the message is free at the requested time. In
    every other case the answer is LEASE_LOST.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        topic: str,
        transactor: Transactor,
        bodies: LargeBodyClient,
        lookup: Lookup,
        settled: Callable[[Grant], None],
    ) -> None:
        self.topic = topic
        self.transactor = transactor
        self.bodies = bodies
        self._connection = connection
        self._lookup = lookup
        self._settled = settled
        self._groups: dict[tuple[int, Settlement], _Group] = {}
        self._deletes = SharedSettles(connection, carrier.DELETE)
        # Apart, so that no delete waits behind the extensions of thousands of leases.
        self._extends = SharedSettles(connection, carrier.EXTEND)
        # Groups that were sent and are not answered.
        self._in_transit: set[_Group] = set()
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.Handle | None = None

    @property
    def deadline(self) -> float:
        """The time limit of one change in seconds."""
        return self._connection.settings.deadline

    async def report(self, lease_id: int, message_id: str, text: str) -> None:
        """Send a progress report."""
        frame = self._connection.frame()
        frame.progress.lease = lease_id
        frame.progress.id = message_id
        frame.progress.text = text
        await self._connection.request(frame, self._connection.until())

    async def settle_row(self, settled: SettledRow, settlement: Settlement) -> Code:
        """Settle one row, together with other rows of this moment."""
        grant, row = settled.delivery.grant, settled.delivery.row_at(settled.index)
        if row not in grant.unsettled:
            return Code.LEASE_LOST
        key = (grant.id, settlement)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(grant, settlement)
        answer: asyncio.Future[Code] = asyncio.get_running_loop().create_future()
        waiting = group.rows.get(row)
        if waiting is None:
            group.rows[row] = (settled, [answer])
        else:
            waiting[1].append(answer)
        self._schedule()
        return await answer

    def _schedule(self) -> None:
        """Send at the end of this turn of the event loop; or, while something is in transit, with its answer or shortly
        before.
        """
        if self._timer is None:
            loop = asyncio.get_running_loop()
            if self._in_transit:
                self._timer = loop.call_later(LINGER_SECONDS, self._flush)
            else:
                self._timer = loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._timer = None
        groups, self._groups = list(self._groups.values()), {}
        for group in groups:
            self._in_transit.add(group)
            if group.settlement.kind == carrier.DELETE:
                self._delete_group(group)
            else:
                self._in_background(self._settle_group(group))
        self._deletes.flush()

    def _delete_group(self, group: _Group) -> None:
        """Delete rows; a task is needed only where the answer leaves a doubt."""
        rows = sorted(group.rows)
        settle = carrier.Settle(
            kind=carrier.DELETE,
            lease=group.grant.id,
            ranges=group.grant.ranges(rows),
            handed_us=group.handed_us(rows),
        )

        def answered(answer: BrokerAnswer | Exception) -> None:
            if isinstance(answer, Exception):
                self._answered(group, answer)
            elif answer.unsure and answer.codes:
                self._in_background(self._resolve_group(group, rows, answer.codes))
            else:
                self._settle_rows(group.grant, DELETE, rows, answer.codes, end=0)
                self._answered(group, answer.codes)

        self._deletes.begin(settle, answered)

    async def _resolve_group(self, group: _Group, rows: Sequence[int], codes: dict[int, Code]) -> None:
        with self._answering(group):
            codes = await self._resolve(group.grant, DELETE, codes, group.ids)
            self._settle_rows(group.grant, DELETE, rows, codes, end=0)
            self._answered(group, codes)

    async def _settle_group(self, group: _Group) -> None:
        with self._answering(group):
            rows = sorted(group.rows)
            codes = await self._send(
                group.grant, group.settlement, rows, ids_of=group.ids, handed_us=group.handed_us(rows)
            )
            self._answered(group, codes)

    @contextmanager
    def _answering(self, group: _Group) -> Iterator[None]:
        """Give the callers the error, whatever it is."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  its callers get it
            self._answered(group, error)
        finally:
            self._in_transit.discard(group)
            self._changed.set()

    def _answered(self, group: _Group, codes: Mapping[int, Code] | Exception) -> None:
        self._in_transit.discard(group)
        self._changed.set()
        group.answer(codes)
        if self._groups and isinstance(self._timer, asyncio.TimerHandle):
            # Behind the callers that are woken now, so that they share the frame.
            self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_soon(self._flush)

    def _in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def settle(self, portions: Sequence[DeliveryPart], settlement: Settlement) -> dict[int, Code]:
        """Settle portions; returns the codes that are not OK, by place in the concatenated portions."""
        if len(portions) == 1:
            answer_of_one = await self._settle_portion(portions[0], settlement)
            if not answer_of_one:
                return {}
            return {place: answer_of_one[row] for place, row in enumerate(portions[0].rows()) if row in answer_of_one}
        answers = await asyncio.gather(
            *(self._settle_portion(portion, settlement) for portion in portions), return_exceptions=True
        )
        codes: dict[int, Code] = {}
        start = 0
        failures: list[DejaqError] = []
        for portion, answer in zip(portions, answers, strict=True):
            if isinstance(answer, DejaqError):
                failures.append(answer)
                codes.update(dict.fromkeys(range(start, start + len(portion)), answer.code))
            elif isinstance(answer, BaseException):
                raise answer
            elif answer:
                for place, row in enumerate(portion.rows()):
                    if row in answer:
                        codes[start + place] = answer[row]
            start += len(portion)
        if failures and len(failures) == len(portions):
            raise failures[0]
        return codes

    async def _settle_portion(self, portion: DeliveryPart, settlement: Settlement) -> Mapping[int, Code]:
        grant = portion.grant
        numbers = portion.rows()
        rows = numbers if isinstance(numbers, range) else sorted(numbers)
        lost: dict[int, Code] = {}
        if not grant.unsettled.issuperset(rows):
            lost = {row: Code.LEASE_LOST for row in rows if row not in grant.unsettled}
            rows = [row for row in rows if row not in lost]
            if not rows:
                return lost

        def ids_of(wanted: Sequence[int]) -> list[str]:
            place_of = dict(zip(numbers, portion.index, strict=True))
            return [portion.delivery.id_at(place_of[row]) for row in wanted]

        sent = await self._send(grant, settlement, rows, ids_of=ids_of, handed_us=[portion.handed_us])
        return {**lost, **sent}

    async def extend(self, grant: Grant, rows: Sequence[int], lease_ms: int) -> None:
        """Extend rows of a lease, in order, whether user code has them or not."""
        settlement = Settlement(carrier.EXTEND, lease_ms=lease_ms)
        await self._send(grant, settlement, rows, ids_of=lambda _: [], handed_us=())

    async def _send(
        self,
        grant: Grant,
        settlement: Settlement,
        rows: Sequence[int],
        *,
        ids_of: IdsOf,
        handed_us: Sequence[int],
    ) -> dict[int, Code]:
        settle = carrier.Settle(kind=settlement.kind, lease=grant.id, ranges=grant.ranges(rows))
        if settlement.kind == carrier.EXTEND:
            settle.lease_ms = settlement.lease_ms
        elif settlement.kind == carrier.RELEASE:
            settle.ts.append(settlement.ts)
        elif settlement.cause is not None:
            settle.reason = settlement.cause.reason
            settle.error = settlement.cause.error
            settle.traceback = settlement.cause.traceback
        if settlement.kind in _FINAL:
            settle.handed_us.extend(handed_us)
        # Read before the broker reads its own clock, so that it is never later than the real end.
        end = self._connection.broker_clock.surely_ms() + settlement.lease_ms
        if settlement.kind in (carrier.DELETE, carrier.EXTEND):
            gathered = self._deletes if settlement.kind == carrier.DELETE else self._extends
            answer = await gathered.send(settle)
        else:
            frame = self._connection.frame()
            frame.settle.CopyFrom(settle)
            answer = await self._connection.request(frame, self._connection.until())
        codes = answer.codes
        if answer.unsure and codes:
            codes = await self._resolve(grant, settlement, codes, ids_of)
        self._settle_rows(grant, settlement, rows, codes, end=end)
        return codes

    def _settle_rows(
        self, grant: Grant, settlement: Settlement, rows: Sequence[int], codes: Mapping[int, Code], *, end: int
    ) -> None:
        """Record the broker's answer about rows of a lease."""
        if codes:
            grant.lose([row for row, code in codes.items() if code is Code.LEASE_LOST])
        if settlement.kind == carrier.EXTEND:
            grant.move_end([row for row in rows if row not in codes], end)
        else:
            grant.settle(rows)
        self._settled(grant)

    async def _resolve(
        self, grant: Grant, settlement: Settlement, codes: dict[int, Code], ids_of: IdsOf
    ) -> dict[int, Code]:
        doubtful = [row for row, code in codes.items() if code is Code.LEASE_LOST]
        if settlement.kind not in _FINAL or not doubtful:
            return codes
        found = await self._look(grant, settlement, ids_of(doubtful))
        for row, message in zip(doubtful, found, strict=True):
            if settlement.done(message):
                del codes[row]
        return codes

    async def _look(self, grant: Grant, settlement: Settlement, ids: list[str]) -> Sequence[Message | None]:
        """Read messages until the outcome of their settlement is known.

        While a message is still as its lease left it, an earlier try may still be in transit to the store and succeed
        later: only the next lease of the message rules that out.
        """
        until, pause = self._connection.until(), _LOOK_SECONDS_MIN
        loop = asyncio.get_running_loop()
        while True:
            try:
                found = await self._lookup(ids)
            except DejaqError as error:
                raise Indefinite("the session broke and the message could not be read", details=str(error)) from error
            if all(one is None or one.version != grant.id or settlement.done(one) for one in found):
                return found
            if loop.time() + pause > until:
                raise Indefinite("the lease ended, and an earlier try may yet be done")
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LOOK_SECONDS_MAX)

    def settled(self, grant: Grant, rows: Sequence[int]) -> None:
        """Record that a transaction settled rows."""
        grant.settle(rows)
        self._settled(grant)

    async def drain(self) -> None:
        """Send the gathered rows and wait until all are answered."""
        while self._groups or self._in_transit:
            if self._timer is not None:
                self._timer.cancel()
            self._flush()
            if self._in_transit:
                self._changed.clear()
                await self._changed.wait()
