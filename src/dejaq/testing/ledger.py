"""What a workload did and what it saw, message by message, and what is wrong with that.

Every call is noted with the times at which it began and ended and with its outcome: OK, refused, or unknown. Between
its beginning and its end a call may have taken effect at any moment, so only what no order of effects explains is
reported. Times are in microseconds of the one clock that broker and clients share.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

_NEVER = 2**62


class Outcome(StrEnum):
    """What is known of a call."""

    OK = "ok"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class Kind(StrEnum):
    """How a lease may be settled or prolonged."""

    DELETE = "delete"
    RELEASE = "release"
    EXTEND = "extend"


@dataclass(slots=True)
class Send:
    """A create: the message's name (its body), and the time it was asked for."""

    name: str
    ts_ms: int
    outcome: Outcome = Outcome.UNKNOWN


@dataclass(slots=True)
class Settle:
    """A call about one delivery; `until_ms` is the new time of a release or the new end of an extend."""

    kind: Kind
    began_us: int
    until_ms: int = 0
    ended_us: int = 0
    outcome: Outcome = Outcome.UNKNOWN

    @property
    def possible(self) -> bool:
        """Whether it may have taken effect."""
        return self.outcome is not Outcome.REFUSED


@dataclass(slots=True)
class Delivery:
    """A hand-over to user code: under which lease, when, and until when the lease was said to last."""

    name: str
    consumer: str
    version: int
    handed_us: int
    expires_ms: int
    settles: list[Settle] = field(default_factory=list)

    @property
    def surely_held_until_us(self) -> int:
        """Until then nobody else may have it, whatever the unknown calls did."""
        end_ms = self.expires_ms
        for extend in self._of(Kind.EXTEND):
            # An extension never shortens a lease.
            if extend.outcome is Outcome.OK:
                end_ms = max(end_ms, extend.until_ms)
        leaving = [settle.began_us for settle in [*self.deletes, *self.releases]]
        return min([end_ms * 1_000, *leaving])

    @property
    def possibly_held_until_us(self) -> int:
        """After then it is not held, whatever the unknown calls did."""
        # The broker counts an extension from when it comes to it, at the latest at the end of the call.
        extends = [s for s in self._of(Kind.EXTEND) if s.possible]
        latest = [s.until_ms * 1_000 + s.ended_us - s.began_us if s.outcome is Outcome.OK else _NEVER for s in extends]
        return max([self.expires_ms * 1_000, *latest])

    @property
    def deletes(self) -> list[Settle]:
        """The deletes that may have taken effect."""
        return [s for s in self._of(Kind.DELETE) if s.possible]

    @property
    def releases(self) -> list[Settle]:
        """The releases that may have taken effect."""
        return [s for s in self._of(Kind.RELEASE) if s.possible]

    def _of(self, kind: Kind) -> Iterator[Settle]:
        return (settle for settle in self.settles if settle.kind is kind)


class Fault(StrEnum):
    """What must never happen."""

    LOST = "lost"
    UNEXPECTED = "unexpected"
    EARLY = "early"
    OVERLAP = "two live leases"
    UNDELETED = "delivered after its delete"
    STALE = "settled after its lease"
    TWICE = "one lease handed over twice"
    STUCK = "due and never drained"


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault of one message, with the story that shows it."""

    fault: Fault
    name: str
    story: str

    def __str__(self) -> str:
        return f"{self.fault}: {self.name}: {self.story}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Every finding, and how much they were looked for in."""

    findings: list[Finding]
    acknowledged: int
    delivered: int
    repeats: int

    @property
    def faults(self) -> Counter[Fault]:
        """How often each fault was found."""
        return Counter(finding.fault for finding in self.findings)

    def __str__(self) -> str:
        told = "\n".join(map(str, self.findings[:10]))
        head = f"{self.acknowledged} acknowledged, {self.delivered} delivered, {self.repeats} repeats explained"
        return f"{head}, {len(self.findings)} faults\n{told}"


class Ledger:
    """Takes notes while a workload runs; `verdict` reads them after a full drain."""

    def __init__(self) -> None:
        self.sends: dict[str, Send] = {}
        self.deliveries: dict[str, list[Delivery]] = defaultdict(list)

    def sent(self, name: str, ts_ms: int) -> Send:
        """Note a create before it is tried; its outcome is unknown until it is set."""
        send = self.sends[name] = Send(name, ts_ms)
        return send

    def handed(self, delivery: Delivery) -> None:
        """Note a hand-over."""
        self.deliveries[delivery.name].append(delivery)

    def verdict(self, pending: Collection[str] = ()) -> Verdict:
        """Judge everything noted; `pending` are the messages that a drain, long after their time, left in the store."""
        findings = [finding for name in {*self.sends, *self.deliveries} for finding in self._judge(name, pending)]
        return Verdict(
            findings=sorted(findings, key=str),
            acknowledged=sum(send.outcome is Outcome.OK for send in self.sends.values()),
            delivered=sum(map(len, self.deliveries.values())),
            repeats=sum(len(deliveries) - 1 for deliveries in self.deliveries.values()),
        )

    def _judge(self, name: str, pending: Collection[str]) -> Iterator[Finding]:
        send = self.sends.get(name)
        # The order in which the leases were given, which may not be that in which they were handed over.
        deliveries = sorted(self.deliveries.get(name, []), key=lambda delivery: delivery.version)
        story = f"{send}; {deliveries}; {'pending' if name in pending else 'gone'}"
        found = set(_faults(send, deliveries, pending=name in pending))
        yield from (Finding(fault, name, story) for fault in found)


def _faults(send: Send | None, deliveries: list[Delivery], *, pending: bool) -> Iterator[Fault]:
    if send is None or send.outcome is Outcome.REFUSED:
        if deliveries or pending:
            yield Fault.UNEXPECTED
        return
    if pending:
        yield Fault.STUCK
    deleted = any(delivery.deletes for delivery in deliveries)
    if not pending and not deleted and (send.outcome is Outcome.OK or deliveries):
        yield Fault.LOST
    if any(delivery.handed_us < send.ts_ms * 1_000 for delivery in deliveries):
        yield Fault.EARLY
    if len({delivery.version for delivery in deliveries}) < len(deliveries):
        yield Fault.TWICE
    ended = [s.ended_us for delivery in deliveries for s in delivery.deletes if s.outcome is Outcome.OK]
    if ended and (pending or any(delivery.handed_us > min(ended) for delivery in deliveries)):
        yield Fault.UNDELETED
    for place, earlier in enumerate(deliveries):
        for later in deliveries[place + 1 :]:
            yield from _between(earlier, later)
        yield from _stale(earlier, [other for other in deliveries if other is not earlier])


def _between(earlier: Delivery, later: Delivery) -> Iterator[Fault]:
    """What a delivery under a later lease says about an earlier one."""
    if earlier.version == later.version:
        return
    if later.handed_us < earlier.surely_held_until_us:
        yield Fault.OVERLAP
    released = [s for s in earlier.releases if s.outcome is Outcome.OK]
    if released and later.handed_us < released[0].until_ms * 1_000:
        yield Fault.EARLY


def _stale(delivery: Delivery, others: list[Delivery]) -> Iterator[Fault]:
    """A settlement that was accepted although its lease had ended before it began.

    A delete also counts as done when its message was found gone after a break of the connection; then another delivery
    has a delete of its own.
    """
    elsewhere = any(other.deletes for other in others)
    for settle in delivery.settles:
        late = settle.began_us > delivery.possibly_held_until_us
        if settle.outcome is Outcome.OK and late and not (settle.kind is Kind.DELETE and elsewhere):
            yield Fault.STALE
