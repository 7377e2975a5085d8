"""Records the calls and deliveries of a workload, message by message, and finds errors in them.

Every call is recorded with the times at which it began and ended and with its outcome: OK, refused, or unknown. Between
its begin and its end a call may have taken effect at any moment, so only histories that no order of effects explains
are reported. Times are microseconds of the one clock that broker and clients share.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

_NEVER = 2**62


class CallOutcome(StrEnum):
    """What is known of the effect of a call."""

    OK = "ok"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class SettlementKind(StrEnum):
    """The ways to settle or extend a lease."""

    DELETE = "delete"
    RELEASE = "release"
    EXTEND = "extend"


@dataclass(slots=True)
class Send:
    """A create: the message's name (its body), and its requested time."""

    name: str
    ts_ms: int
    outcome: CallOutcome = CallOutcome.UNKNOWN


@dataclass(slots=True)
class Settle:
    """A call about one delivery; `until_ms` is the new time of a release or the new end of an extend."""

    kind: SettlementKind
    began_us: int
    until_ms: int = 0
    ended_us: int = 0
    outcome: CallOutcome = CallOutcome.UNKNOWN

    @property
    def possible(self) -> bool:
        """Whether the call may have taken effect."""
        return self.outcome is not CallOutcome.REFUSED


@dataclass(slots=True)
class HandOver:
    """A delivery to user code: its lease, its time, and the end of the lease that the consumer was given."""

    name: str
    consumer: str
    version: int
    handed_us: int
    expires_ms: int
    settles: list[Settle] = field(default_factory=list)

    @property
    def surely_held_until_us(self) -> int:
        """Until this time no other consumer may have the message, whatever the unknown calls did."""
        end_ms = self.expires_ms
        for extend in self._of(SettlementKind.EXTEND):
            # An extension never shortens a lease.
            if extend.outcome is CallOutcome.OK:
                end_ms = max(end_ms, extend.until_ms)
        leaving = [settle.began_us for settle in [*self.deletes, *self.releases]]
        return min([end_ms * 1_000, *leaving])

    @property
    def possibly_held_until_us(self) -> int:
        """After this time the lease is over, whatever the unknown calls did."""
        # The broker counts an extension from when it handles the call, at the latest at the end of the call.
        extends = [s for s in self._of(SettlementKind.EXTEND) if s.possible]
        latest = [
            s.until_ms * 1_000 + s.ended_us - s.began_us if s.outcome is CallOutcome.OK else _NEVER for s in extends
        ]
        return max([self.expires_ms * 1_000, *latest])

    @property
    def deletes(self) -> list[Settle]:
        """The deletes that may have taken effect."""
        return [s for s in self._of(SettlementKind.DELETE) if s.possible]

    @property
    def releases(self) -> list[Settle]:
        """The releases that may have taken effect."""
        return [s for s in self._of(SettlementKind.RELEASE) if s.possible]

    def _of(self, kind: SettlementKind) -> Iterator[Settle]:
        return (settle for settle in self.settles if settle.kind is kind)


class DeliveryFault(StrEnum):
    """Faults that must never happen."""

    LOST = "lost"
    UNEXPECTED = "unexpected"
    EARLY = "early"
    OVERLAP = "two live leases"
    UNDELETED = "delivered after its delete"
    STALE = "settled after its lease"
    TWICE = "one lease handed over twice"
    STUCK = "due and never drained"


@dataclass(frozen=True, slots=True)
class DeliveryFinding:
    """One fault of one message, with the history that shows it."""

    fault: DeliveryFault
    name: str
    story: str

    def __str__(self) -> str:
        return f"{self.fault}: {self.name}: {self.story}"


@dataclass(frozen=True, slots=True)
class WorkloadVerdict:
    """Every finding, and the numbers of calls that were checked."""

    findings: list[DeliveryFinding]
    acknowledged: int
    delivered: int
    repeats: int

    @property
    def faults(self) -> Counter[DeliveryFault]:
        """How often each fault was found."""
        return Counter(finding.fault for finding in self.findings)

    def __str__(self) -> str:
        told = "\n".join(map(str, self.findings[:10]))
        head = f"{self.acknowledged} acknowledged, {self.delivered} delivered, {self.repeats} repeats explained"
        return f"{head}, {len(self.findings)} faults\n{told}"


class DeliveryLedger:
    """Records a workload while it runs; `verdict` checks the records after a full drain."""

    def __init__(self) -> None:
        self.sends: dict[str, Send] = {}
        self.deliveries: dict[str, list[HandOver]] = defaultdict(list)

    def sent(self, name: str, ts_ms: int) -> Send:
        """Record a create before it is tried; its outcome is unknown until it is set."""
        send = self.sends[name] = Send(name, ts_ms)
        return send

    def handed(self, delivery: HandOver) -> None:
        """Record a delivery."""
        self.deliveries[delivery.name].append(delivery)

    def verdict(self, pending: Collection[str] = ()) -> WorkloadVerdict:
        """Check all records; `pending` are the messages that were left after a drain that ended
        long after their time.
        """
        findings = [finding for name in {*self.sends, *self.deliveries} for finding in self._judge(name, pending)]
        return WorkloadVerdict(
            findings=sorted(findings, key=str),
            acknowledged=sum(send.outcome is CallOutcome.OK for send in self.sends.values()),
            delivered=sum(map(len, self.deliveries.values())),
            repeats=sum(len(deliveries) - 1 for deliveries in self.deliveries.values()),
        )

    def _judge(self, name: str, pending: Collection[str]) -> Iterator[DeliveryFinding]:
        send = self.sends.get(name)
        # The order in which the leases were created, which may differ from the order of the deliveries.
        deliveries = sorted(self.deliveries.get(name, []), key=lambda delivery: delivery.version)
        story = f"{send}; {deliveries}; {'pending' if name in pending else 'gone'}"
        found = set(_faults(send, deliveries, pending=name in pending))
        yield from (DeliveryFinding(fault, name, story) for fault in found)


def _faults(send: Send | None, deliveries: list[HandOver], *, pending: bool) -> Iterator[DeliveryFault]:
    if send is None or send.outcome is CallOutcome.REFUSED:
        if deliveries or pending:
            yield DeliveryFault.UNEXPECTED
        return
    if pending:
        yield DeliveryFault.STUCK
    deleted = any(delivery.deletes for delivery in deliveries)
    if not pending and not deleted and (send.outcome is CallOutcome.OK or deliveries):
        yield DeliveryFault.LOST
    if any(delivery.handed_us < send.ts_ms * 1_000 for delivery in deliveries):
        yield DeliveryFault.EARLY
    if len({delivery.version for delivery in deliveries}) < len(deliveries):
        yield DeliveryFault.TWICE
    ended = [s.ended_us for delivery in deliveries for s in delivery.deletes if s.outcome is CallOutcome.OK]
    if ended and (pending or any(delivery.handed_us > min(ended) for delivery in deliveries)):
        yield DeliveryFault.UNDELETED
    for place, earlier in enumerate(deliveries):
        for later in deliveries[place + 1 :]:
            yield from _between(earlier, later)
        yield from _stale(earlier, [other for other in deliveries if other is not earlier])


def _between(earlier: HandOver, later: HandOver) -> Iterator[DeliveryFault]:
    """The faults that a delivery under a later lease shows about an earlier delivery."""
    if earlier.version == later.version:
        return
    if later.handed_us < earlier.surely_held_until_us:
        yield DeliveryFault.OVERLAP
    released = [s for s in earlier.releases if s.outcome is CallOutcome.OK]
    if released and later.handed_us < released[0].until_ms * 1_000:
        yield DeliveryFault.EARLY


def _stale(delivery: HandOver, others: list[HandOver]) -> Iterator[DeliveryFault]:
    """A settlement that was accepted although its lease had ended before it began.

    A delete also counts as done when its message was found gone after a break of the connection; then another delivery
    has a delete of its own.
    """
    elsewhere = any(other.deletes for other in others)
    for settle in delivery.settles:
        late = settle.began_us > delivery.possibly_held_until_us
        if settle.outcome is CallOutcome.OK and late and not (settle.kind is SettlementKind.DELETE and elsewhere):
            yield DeliveryFault.STALE
