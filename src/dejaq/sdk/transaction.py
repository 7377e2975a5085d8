"""A transaction: deletes, releases, moves, cancels and sends that the broker does together or not at all."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from dejaq import limits
from dejaq.domain.ids import COUNTER_MAX, ProducerSession
from dejaq.errors import MEANINGS, Code, DejaqError, Indefinite, NoBroker, error_of
from dejaq.protocol.columns import code_from_proto
from dejaq.protocol.transport import Transport
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1 import overseer_pb2 as overseer
from dejaq.sdk.broker_clock import BrokerClock
from dejaq.sdk.large import TRIES, LargeBodies, Terms
from dejaq.sdk.outgoing import Headers, Outgoing, as_body, encoded_headers, id_column, refusals
from dejaq.sdk.pool import Pool
from dejaq.sdk.seeds import Patience, Seeds
from dejaq.sdk.sender import fill
from dejaq.sdk.settings import ClientSettings
from dejaq.sdk.times import At, Delay, resolve

if TYPE_CHECKING:
    from dejaq.sdk.grant import Grant
    from dejaq.sdk.lease import Held
    from dejaq.sdk.settler import Settler

# Each transaction that was not done leaves a gap in the sequence, of which the broker remembers a limited number.
GAPS_MAX = limits.PRODUCER_SESSION_GAPS_MAX // 4

# How long it is believed what a topic's settings were.
TERMS_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The broker's answer: done, or refused because of one row of one step."""

    code: Code
    step: int
    row: int


class HasHeld(Protocol):
    """A lease, or a batch of them."""

    @property
    def held(self) -> Held:
        """What is settled."""


class Transactor:
    """Names the transactions of one client and repeats each until it is answered."""

    def __init__(self, seeds: Seeds, settings: ClientSettings, clock: BrokerClock, random: Random) -> None:
        self.clock = clock
        self._seeds = seeds
        self._settings = settings
        self._pools: dict[str, Pool] = {}
        self._terms: dict[str, tuple[float, Terms]] = {}
        self.bodies = LargeBodies(seeds, settings)
        self._random = random
        self._begin()

    def _begin(self) -> None:
        self._session = ProducerSession(self._settings.clock.now_ms(), self._random.getrandbits(32))
        self._sequence = 0
        self._counters: dict[str, int] = {}
        self._gaps = 0

    def new_id(self) -> str:
        """An id that nobody else has."""
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    async def terms(self, topic: str) -> Terms:
        """What a topic says about bodies, as it was some seconds ago at most."""
        now = self._settings.clock.monotonic()
        kept = self._terms.get(topic)
        if kept is not None and now - kept[0] < TERMS_SECONDS:
            return kept[1]
        described = await self._seeds.call(
            "Overseer.DescribeTopic",
            overseer.TopicRequest(name=topic),
            overseer.TopicResponse,
            patience=self._settings,
        )
        terms = Terms.of(described)
        self._terms[topic] = (now, terms)
        return terms

    def name(self, request: carrier.TransactRequest) -> None:
        """Give a request and its batches names that nobody else has."""
        if self._gaps >= GAPS_MAX or max([self._sequence, *self._counters.values()]) > COUNTER_MAX // 2:
            self._begin()
        request.client = self._settings.name
        request.session = self._session.pack()
        request.sequence = self._sequence
        self._sequence += 1
        for step in request.steps:
            if step.HasField("create"):
                step.create.sequence = self._counters.get(step.topic, 0)
                self._counters[step.topic] = step.create.sequence + len(step.create.ts)

    async def commit(self, request: carrier.TransactRequest) -> Verdict:
        """Send a named request until it is answered; raises Indefinite when it may have been done without an answer."""
        tries = self._seeds.patience(self._settings)
        unsure = False
        while True:
            transport = self._seeds.first()
            try:
                answer = await self._pool(transport).call(request, min(self._settings.timeout, tries.left()))
            except DejaqError as error:
                # What broke on the way may have been done; an error that the broker answered was not.
                unsure = unsure or error.indefinite or error.code in (Code.NO_BROKER, Code.UNAVAILABLE)
                await self._wait(tries, error, transport, unsure)
                continue
            verdict = Verdict(code_from_proto(answer.code), answer.step, answer.row)
            self._gaps += not verdict.code.succeeded
            return verdict

    def _pool(self, transport: Transport) -> Pool:
        """What carries transactions by a transport; transports live as long as the client."""
        return self._pools.setdefault(transport.address, Pool(transport))

    async def _wait(self, tries: Patience, error: DejaqError, transport: Transport, unsure: bool) -> None:
        try:
            await tries.after(error, transport)
        except DejaqError as final:
            self._gaps += 1
            if unsure and isinstance(final, NoBroker):
                raise Indefinite("the transaction was not answered; it may have been done or not") from final
            raise


@dataclass(slots=True)
class _Settled:
    """Rows of one lease that a step settles."""

    settler: Settler
    grant: Grant
    step: carrier.Step
    rows: list[int] = field(default_factory=list)
    handed_us: dict[int, int] = field(default_factory=dict)


class Transaction:
    """Collects changes and commits them when its block ends. Made by `client.transaction`.

    Every change is decided on the state before the transaction, so each message may be named once.
    """

    def __init__(self, transactor: Transactor, *, group: str) -> None:
        self.group = group
        self._transactor = transactor
        self._settled: dict[tuple[int, int], _Settled] = {}
        self._sent: dict[tuple[str, str], list[Outgoing]] = {}
        self._cancelled: dict[tuple[str, str], list[str]] = {}
        self._edited: list[carrier.Step] = []
        # The bodies of edits as they were given.
        self._bodies: dict[int, bytes] = {}
        self._over = False

    def delete(self, lease: HasHeld) -> None:
        """Delete a leased message, or a batch of them."""
        self._settle(lease, carrier.DELETE, ts=None)

    def release(self, lease: HasHeld, *, at: At | None = None, delay: Delay | None = None) -> None:
        """Put a leased message, or a batch, back on the timeline: at `at`, after `delay` seconds, or at once."""
        self._settle(lease, carrier.RELEASE, ts=self._time(at, delay))

    def send(
        self,
        topic: str,
        body: bytes,
        *,
        at: At | None = None,
        delay: Delay | None = None,
        id: str | None = None,
        priority: int = 0,
        headers: Headers | None = None,
        group: str | None = None,
    ) -> str:
        """Create a message in a topic, as `Producer.send` does; gives its id."""
        self._check_open()
        message_id = id if id is not None else self._transactor.new_id()
        encoded = encoded_headers(headers)
        ts = self._time(at, delay)
        row = Outgoing(
            ts=[ts],
            bodies=[as_body(body)],
            ids=id_column([message_id], 1),
            priorities=[priority],
            headers=[encoded],
        )
        for code in refusals(row, bytes_max=limits.LARGE_BODY_BYTES_MAX).values():
            raise error_of(code, details=message_id)
        self._sent.setdefault((topic, group or self.group), []).append(row)
        return message_id

    create = send

    def move(
        self,
        topic: str,
        ids: str | Sequence[str],
        *,
        at: At | None = None,
        delay: Delay | None = None,
        group: str | None = None,
    ) -> None:
        """Give messages of the group another time."""
        if at is None and delay is None:
            raise error_of(Code.INVALID_ARGUMENT, "give the new time with `at` or `delay`")
        listed = [ids] if isinstance(ids, str) else id_column(ids, len(ids))
        self._edit(topic, group, listed).ts.extend([self._time(at, delay)] * len(listed))

    def edit(
        self,
        topic: str,
        id: str,
        *,
        body: bytes | None = None,
        at: At | None = None,
        delay: Delay | None = None,
        priority: int | None = None,
        headers: Headers | None = None,
        version: int | None = None,
        group: str | None = None,
    ) -> None:
        """Change one message of the group; what is not given stays."""
        if body is None and at is None and delay is None and priority is None and headers is None:
            raise error_of(Code.INVALID_ARGUMENT, "give what to change: body, at, delay, priority or headers")
        edit = self._edit(topic, group, [id])
        if at is not None or delay is not None:
            edit.ts.append(self._time(at, delay))
        if body is not None:
            self._bodies[len(self._edited) - 1] = as_body(body)
        if priority is not None:
            edit.priorities.append(priority)
        if headers is not None:
            edit.headers.append(encoded_headers(headers))
        if version is not None:
            edit.versions.append(version)

    def cancel(self, topic: str, ids: str | Sequence[str], *, group: str | None = None) -> None:
        """Remove messages of the group."""
        self._check_open()
        listed = [ids] if isinstance(ids, str) else id_column(ids, len(ids))
        self._cancelled.setdefault((topic, group or self.group), []).extend(listed)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.commit()
        self._over = True

    async def commit(self) -> None:
        """Do everything, now; raises the refusal of the first change that is not allowed, when nothing was done."""
        self._check_open()
        self._over = True
        for attempt in range(TRIES):
            request = await self._request(attempt)
            if not request.steps:
                return
            self._transactor.name(request)
            answer = await self._transactor.commit(request)
            code = answer.code
            if code is not Code.BODY_MISSING:
                break
        if code.succeeded:
            for settled in self._settled.values():
                settled.settler.settled(settled.grant, settled.rows)
            return
        step = request.steps[answer.step]
        if code is Code.LEASE_LOST:
            # Settlements are the first steps, in their order.
            list(self._settled.values())[answer.step].grant.lose([answer.row])
        raise error_of(code, f"nothing was done: {_described(step, answer.row)}: {MEANINGS[code]}")

    def _check_open(self) -> None:
        if self._over:
            raise error_of(Code.OUT_OF_STATE, "the transaction is over; begin another")

    def _time(self, at: At | None, delay: Delay | None) -> int:
        ts = resolve(at, delay, self._transactor.clock.now_us())
        if not 0 <= ts <= limits.TS_MS_MAX:
            raise error_of(Code.INVALID_TIME, details=f"{ts} ms")
        return ts

    def _edit(self, topic: str, group: str | None, ids: list[str]) -> carrier.EditBatch:
        self._check_open()
        step = carrier.Step(topic=topic, actor=group or self.group)
        step.edit.ids.extend(ids)
        self._edited.append(step)
        return step.edit

    def _settle(self, lease: HasHeld, kind: carrier.SettleKind, *, ts: int | None) -> None:
        self._check_open()
        held = lease.held
        for portion in held.portions:
            key = (portion.grant.id, -1 if ts is None else ts)
            settled = self._settled.get(key)
            if settled is None:
                step = carrier.Step(topic=held.settler.topic, actor=portion.delivery.columns.consumer)
                step.settle.kind = kind
                step.settle.lease = portion.grant.id
                if ts is not None:
                    step.settle.ts.append(ts)
                settled = self._settled[key] = _Settled(held.settler, portion.grant, step)
            for row in portion.rows():
                if row in settled.handed_us:
                    raise error_of(Code.DUPLICATE_IN_BATCH, "the transaction settles this lease already")
                settled.rows.append(row)
                settled.handed_us[row] = portion.handed_us

    async def _request(self, attempt: int) -> carrier.TransactRequest:
        """All changes, in their order; large bodies are uploaded for it."""
        request = carrier.TransactRequest()
        for settled in self._settled.values():
            step = request.steps.add()
            step.CopyFrom(settled.step)
            numbers = sorted(settled.rows)
            step.settle.ranges.extend(settled.grant.ranges(numbers))
            times = [settled.handed_us[number] for number in numbers]
            step.settle.handed_us.extend(times if any(time != times[0] for time in times) else times[:1])
        for number, edited in enumerate(self._edited):
            step = request.steps.add()
            step.CopyFrom(edited)
            if number in self._bodies:
                stored, large = await self._stored(step.topic, step.edit.ids, [self._bodies[number]], attempt)
                step.edit.bodies.extend(stored)
                step.edit.large = large
        for (topic, group), ids in self._cancelled.items():
            request.steps.add(topic=topic, actor=group).cancel.ids.extend(ids)
        for (topic, group), rows in self._sent.items():
            create = request.steps.add(topic=topic, actor=group).create
            listed = [row.ids[0] for row in rows if row.ids]
            stored, large = await self._stored(topic, listed, [row.bodies[0] for row in rows], attempt)
            for row, body in zip(rows, stored, strict=True):
                fill(create, replace(row, bodies=[body], large=large))
        return request

    async def _stored(
        self, topic: str, ids: Sequence[str], bodies: Sequence[bytes], attempt: int
    ) -> tuple[list[bytes], bool]:
        terms = await self._transactor.terms(topic)
        return await self._transactor.bodies.stored(topic, terms, ids, bodies, attempt=attempt)


def _described(step: carrier.Step, row: int) -> str:
    """A change, for people."""
    change = step.WhichOneof("change")
    if change == "settle":
        verb = "delete" if step.settle.kind == carrier.DELETE else "release"
        return f"{verb} of row {row} of lease {step.settle.lease} in {step.topic!r}"
    batch = getattr(step, str(change))
    verb = {"create": "send", "edit": "change", "cancel": "cancel"}[str(change)]
    name = batch.ids[row] if row < len(batch.ids) else f"row {row}"
    return f"{verb} of {name} in {step.topic!r}"
