"""A transaction: deletes, releases, moves, cancels and sends that the broker does all together or not at all."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from isal.isal_zlib import crc32

from dejaq import limits
from dejaq.domain.ids import COUNTER_MAX, ProducerSession
from dejaq.errors import MEANINGS, Code, DejaqError, Indefinite, error_of
from dejaq.protocol.columns import code_from_proto
from dejaq.protocol.transport import Transport
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1 import log_pb2
from dejaq.protocol.v1 import overseer_pb2 as overseer
from dejaq.sdk.bodies.large import TRIES, LargeBodyClient, TopicTerms
from dejaq.sdk.changing.pool import Pool
from dejaq.sdk.log.messages import check_log_body
from dejaq.sdk.log.transacting import HasGroupCommits, HasLogTarget, LogChanges, described, prepared_request
from dejaq.sdk.producing.naming import SequenceCounter, wants_new_session
from dejaq.sdk.producing.outgoing import (
    HeaderChange,
    Headers,
    OutgoingColumns,
    as_body,
    encoded_header_change,
    encoded_headers,
    id_column,
    refusals,
)
from dejaq.sdk.producing.sender import fill
from dejaq.sdk.session.broker_clock import BrokerClock
from dejaq.sdk.session.clock_check import freshen
from dejaq.sdk.session.seeds import Patience, Seeds
from dejaq.sdk.session.settings import ClientSettings
from dejaq.sdk.times import At, Delay, is_relative, resolve

if TYPE_CHECKING:
    from dejaq.sdk.consuming.grant import Grant
    from dejaq.sdk.consuming.lease import Held
    from dejaq.sdk.consuming.settler import Settler

# How many names a transaction may use, one after the other.
NAMES_MAX = 3
# The random bits of a UUID, and the others in version 4.
_UUID_BITS = ~((0xF << 76) | (0x3 << 62)) % (1 << 128)
_UUID_VERSION_4 = (0x4 << 76) | (0x2 << 62)
# How long the settings of a topic are used before they are read again.
TERMS_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The broker's answer: the transaction was done, or was refused because of one row of one step."""

    code: Code
    step: int
    row: int


class HasHeld(Protocol):
    """A lease, or a batch of them."""

    @property
    def held(self) -> Held:
        """The leased rows that the transaction settles."""


class Transactor:
    """Gives the transactions of one client their names, and repeats each transaction until it is answered."""

    def __init__(self, seeds: Seeds, settings: ClientSettings, clock: BrokerClock, random: Random) -> None:
        self.clock = clock
        self._seeds = seeds
        self._settings = settings
        self._pools: dict[str, Pool] = {}
        self._terms: dict[str, tuple[float, TopicTerms]] = {}
        self._asking: dict[str, asyncio.Future[TopicTerms]] = {}
        self.bodies = LargeBodyClient(seeds, settings)
        self._random = random
        self._begin()

    def _begin(self) -> None:
        self._session = ProducerSession(self._settings.clock.now_ms(), self._random.getrandbits(32))
        self._sequence = SequenceCounter()
        # The sequences of the messages sent to each topic.
        self._counters: defaultdict[str, SequenceCounter] = defaultdict(SequenceCounter)

    def new_id(self) -> str:
        """A unique id."""
        # A UUID of version 4; the class of the standard library takes three times as long.
        digits = f"{self._random.getrandbits(128) & _UUID_BITS | _UUID_VERSION_4:032x}"
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"

    async def terms(self, topic: str) -> TopicTerms:
        """The settings of a topic for bodies and attempts, at most some seconds old."""
        now = self._settings.clock.monotonic()
        kept = self._terms.get(topic)
        if kept is not None and now - kept[0] < TERMS_SECONDS:
            return kept[1]
        asking = self._asking.get(topic)
        if asking is None:
            # All transactions that need them now wait for one answer; one that is cancelled does not end the call.
            asking = self._asking[topic] = asyncio.ensure_future(self._ask_terms(topic))
            asking.add_done_callback(lambda _: self._asked(topic))
        return await asyncio.shield(asking)

    def _asked(self, topic: str) -> None:
        asked = self._asking.pop(topic)
        if not asked.cancelled():
            # Where all who waited were cancelled, its error is no one's.
            asked.exception()

    async def _ask_terms(self, topic: str) -> TopicTerms:
        request = overseer.TopicRequest(name=topic, settings_only=True)
        now = self._settings.clock.monotonic()
        described = await self._seeds.call(
            "Overseer.DescribeTopic", request, overseer.TopicResponse, patience=self._settings
        )
        terms = TopicTerms.of(described)
        self._terms[topic] = (now, terms)
        return terms

    async def freshen_clock(self) -> None:
        """Compare clocks with the broker if the last comparison is old, so that a delay counts by the broker's time."""
        await freshen(self._seeds, self._settings, self.clock)

    def _name(self, request: carrier.TransactRequest) -> list[tuple[SequenceCounter, int]]:
        """Give a request and its batches unique names; returns their counters."""
        if max(counters.next for counters in (self._sequence, *self._counters.values())) > COUNTER_MAX // 2:
            self._begin()
        request.client = self._settings.name
        request.session = self._session.pack()
        taken: list[tuple[SequenceCounter, int]] = []
        for step in request.steps:
            if step.HasField("create"):
                counters = self._counters[step.topic]
                step.create.acknowledged = counters.acknowledged
                step.create.sequence = counters.take(len(step.create.ts))
                step.create.check = crc32(step.create.SerializeToString()) or 1
                taken.append((counters, step.create.sequence))
        request.acknowledged = self._sequence.acknowledged
        request.sequence = self._sequence.take(1)
        request.check = crc32(request.SerializeToString()) or 1
        return [*taken, (self._sequence, request.sequence)]

    async def commit(self, request: carrier.TransactRequest) -> Verdict:
        """Name a request and send it until it is answered; raises Indefinite when it may have succeeded without an
        answer.
        """
        for tries in itertools.count(1):
            taken = self._name(request)
            session = self._session
            try:
                return await self._commit(request)
            except DejaqError as refused:
                if tries == NAMES_MAX or not wants_new_session(refused):
                    raise
                if session == self._session:
                    self._begin()
            finally:
                for counters, first in taken:
                    counters.done(first)
        raise AssertionError("the tries have no end")

    async def _commit(self, request: carrier.TransactRequest) -> Verdict:
        tries = self._seeds.patience(self._settings)
        unsure = False
        while True:
            transport = self._seeds.first()
            try:
                answer = await self._pool(transport).call(request, min(self._settings.timeout, tries.left()))
            except DejaqError as error:
                error.unsure = unsure
                # A try that failed without an answer may have succeeded; a try that the broker refused did not.
                unsure = unsure or error.indefinite or (error.retryable and not error.answered)
                await self._wait(tries, error, transport, unsure)
                continue
            return Verdict(code_from_proto(answer.code), answer.step, answer.row)

    async def prepare(self, request: log_pb2.LogPrepareRequest) -> log_pb2.LogPrepareResponse:
        """Prepare a transaction on logs; a repeat under its name is recognised."""
        return await self._seeds.call("Log.Prepare", request, log_pb2.LogPrepareResponse, patience=self._settings)

    def _pool(self, transport: Transport) -> Pool:
        """The pool of transactions that belongs to a transport; transports exist as long as the client."""
        return self._pools.setdefault(transport.address, Pool(transport))

    async def _wait(self, tries: Patience, error: DejaqError, transport: Transport, unsure: bool) -> None:
        try:
            await tries.after(error, transport)
        except DejaqError as final:
            if unsure and final.retryable:
                raise Indefinite("the transaction was not answered; it may have been done or not") from final
            raise


@dataclass(slots=True)
class _Settled:
    """Rows of one lease that one step settles."""

    settler: Settler
    grant: Grant
    consumer: str
    kind: carrier.SettleKind
    # When the rows are due again, if they are released.
    ts: int | None
    # The rows, with the times at which user code got them.
    handed_us: dict[int, int] = field(default_factory=dict)

    def write(self, step: carrier.Step) -> None:
        """Fill in the step."""
        step.topic, step.actor = self.settler.topic, self.consumer
        settle = step.settle
        settle.kind, settle.lease = self.kind, self.grant.id
        if self.ts is not None:
            settle.ts.append(self.ts)
        rows = sorted(self.handed_us)
        settle.ranges.extend(self.grant.ranges(rows))
        times = [self.handed_us[row] for row in rows]
        settle.handed_us.extend(times if any(time != times[0] for time in times) else times[:1])


class Transaction:
    """Collects changes and commits them when its block ends. Create it with `client.transaction`.

    Every change is checked against the state before the transaction, so each message may be named only once.
    """

    def __init__(self, transactor: Transactor, *, group: str) -> None:
        self.group = group
        self._transactor = transactor
        self._settled: dict[tuple[int, int], _Settled] = {}
        self._sent: dict[tuple[str, str], OutgoingColumns] = {}
        self._cancelled: dict[tuple[str, str], list[str]] = {}
        self._edited: list[carrier.Step] = []
        # The bodies of edits as the caller gave them.
        self._bodies: dict[int, bytes] = {}
        self._logs = LogChanges()
        self._over = False
        self._prepared = False

    def delete(self, lease: HasHeld) -> None:
        """Delete a leased message, or a batch of them."""
        self._settle(lease, carrier.DELETE, ts=None)

    def release(self, lease: HasHeld, *, at: At | None = None, delay: Delay | None = None) -> None:
        """Put a leased message, or a batch, back on the timeline: at `at`, after `delay` seconds, or immediately."""
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
        """Create a message in a topic, as `Producer.send` does; returns its id."""
        self._check_open()
        message_id = id if id is not None else self._transactor.new_id()
        encoded = encoded_headers(headers)
        ts = self._time(at, delay)
        row = OutgoingColumns(
            ts=[ts],
            bodies=[as_body(body)],
            ids=id_column([message_id], 1),
            priorities=[priority],
            headers=[encoded],
            relative=[is_relative(at)],
        )
        for code in refusals(row, bytes_max=limits.LARGE_BODY_BYTES_MAX).values():
            raise error_of(code, details=message_id)
        sent = self._sent.setdefault((topic, group or self.group), row)
        if sent is not row:
            sent.extend(row)
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
        headers: HeaderChange | None = None,
        version: int | None = None,
        group: str | None = None,
    ) -> None:
        """Change one message of the group; a field that is not given keeps its value.

        `headers` are merged with those of the message; a header whose new value is None is removed.
        """
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
            edit.headers.append(encoded_header_change(headers))
        if version is not None:
            edit.versions.append(version)

    def append(
        self,
        log: HasLogTarget,
        body: bytes,
        *,
        key: bytes = b"",
        headers: Headers | None = None,
        bucket: int | None = None,
    ) -> None:
        """Append a message to a log, as `Log.append` does. The messages of one bucket are one batch."""
        self._check_open()
        check_log_body(body)
        self._logs.append(log.target, (body, key, encoded_headers(headers), bucket))

    def commit_offsets(self, member: HasGroupCommits, offsets: Mapping[int, int] | None = None) -> None:
        """Commit what a member of a group has handed out until now, or these offsets; each is the next one to read.

        The transaction is refused with CLAIM_LOST when another member has one of the buckets by then.
        """
        self._check_open()
        self._logs.commit(member.commits, offsets)

    def cancel(self, topic: str, ids: str | Sequence[str], *, group: str | None = None) -> None:
        """Remove messages of the group."""
        self._check_open()
        listed = [ids] if isinstance(ids, str) else id_column(ids, len(ids))
        self._cancelled.setdefault((topic, group or self.group), []).extend(listed)

    async def __aenter__(self) -> Self:
        await self._transactor.freshen_clock()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and not self._prepared:
            await self.commit()
        self._over = True

    async def commit(self) -> None:
        """Commit all changes now; raises the first refusal, and then nothing was changed."""
        self._check_open()
        self._over = True
        for attempt in range(TRIES):
            request = await self._request(attempt)
            if not request.steps:
                return
            answer = await self._transactor.commit(request)
            code = answer.code
            if code is not Code.BODY_MISSING:
                break
        if code.succeeded:
            for settled in self._settled.values():
                settled.settler.settled(settled.grant, list(settled.handed_us))
            self._logs.done()
            return
        step = request.steps[answer.step]
        if code is Code.LEASE_LOST:
            # The settlements are the first steps of the request, in their order.
            list(self._settled.values())[answer.step].grant.lose([answer.row])
        raise error_of(code, f"nothing was done: {_described(step, answer.row)}: {MEANINGS[code]}")

    async def prepare(self, log: HasLogTarget, name: str, *, timeout: float = 60.0) -> None:
        """Store the changes under a name of this log; `commit_prepared` or `abort_prepared` of any client decides.

        Until then, committed readers stop before the messages. After `timeout` seconds the transaction is aborted. Only
        `append` and `commit_offsets` can be prepared.
        """
        self._check_open()
        if self._settled or self._sent or self._cancelled or self._edited:
            raise error_of(Code.INVALID_ARGUMENT, "only changes of logs can be prepared")
        self._over = True
        self._prepared = True
        request = carrier.TransactRequest()
        await self._logs.add_to(request)
        answer = await self._transactor.prepare(prepared_request(log.target.topic, name, request, timeout))
        code = code_from_proto(answer.code)
        if not code.succeeded:
            raise error_of(code, f"nothing was prepared: {_described(request.steps[answer.step], answer.row)}")
        self._logs.done()

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
                consumer = portion.delivery.columns.consumer
                settled = self._settled[key] = _Settled(held.settler, portion.grant, consumer, kind, ts)
            for row in portion.rows():
                if row in settled.handed_us:
                    raise error_of(Code.DUPLICATE_IN_BATCH, "the transaction settles this lease already")
                settled.handed_us[row] = portion.handed_us

    async def _request(self, attempt: int) -> carrier.TransactRequest:
        """All changes in their order; uploads large bodies first."""
        request = carrier.TransactRequest()
        for settled in self._settled.values():
            settled.write(request.steps.add())
        for number, edited in enumerate(self._edited):
            step = request.steps.add()
            step.CopyFrom(edited)
            if number in self._bodies:
                stored, large = await self._stored(step.topic, step.edit.ids, [self._bodies[number]], attempt)
                step.edit.bodies.extend(stored)
                step.edit.large = large
        for (topic, group), ids in self._cancelled.items():
            request.steps.add(topic=topic, actor=group).cancel.ids.extend(ids)
        for (topic, group), sent in self._sent.items():
            create = request.steps.add(topic=topic, actor=group).create
            stored, large = await self._stored(topic, sent.ids or (), sent.bodies, attempt)
            fill(create, replace(sent, bodies=stored, large=large))
        await self._logs.add_to(request)
        return request

    async def _stored(
        self, topic: str, ids: Sequence[str], bodies: Sequence[bytes], attempt: int
    ) -> tuple[list[bytes], bool]:
        terms = await self._transactor.terms(topic)
        return await self._transactor.bodies.stored(topic, terms, ids, bodies, attempt=attempt)


def _described(step: carrier.Step, row: int) -> str:
    """A description of a change for error messages."""
    change = step.WhichOneof("change")
    if change in ("append", "commit"):
        return described(step, row)
    if change == "settle":
        verb = "delete" if step.settle.kind == carrier.DELETE else "release"
        return f"{verb} of row {row} of lease {step.settle.lease} in {step.topic!r}"
    batch = getattr(step, str(change))
    verb = {"create": "send", "edit": "change", "cancel": "cancel"}[str(change)]
    name = batch.ids[row] if row < len(batch.ids) else f"row {row}"
    return f"{verb} of {name} in {step.topic!r}"
