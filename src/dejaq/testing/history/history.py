"""R9: checks the recorded calls on each message and their answers against the allowed life of a message.

Every call is an event with the times at which it began and ended and with its outcome: done, refused, or unknown. A
call took effect at one moment between its begin and its end; an unknown call may take effect later or never. Each
message is a separate object with a short history, so all orders of effects can be tried: a history that no order
explains is a violation.

Times are microseconds of the broker's clock. An id names one message; a later create of the same id counts as a repeat.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from dejaq.testing.history.ledger import CallOutcome, DeliveryLedger, SettlementKind
from dejaq.testing.history.linearization import NEVER, Event, Op, linearizable


class Violation(StrEnum):
    """Events that must never happen."""

    LOST = "acknowledged, and gone without a delete or cancel"
    UNEXPECTED = "delivered, and never created"
    EARLY = "handed over before its time"
    OVERLAP = "two live leases at one time"
    UNEXPLAINED = "delivered again without a reason"
    UNORDERED = "no order of effects explains the answers"


@dataclass(frozen=True, slots=True)
class HistoryFinding:
    """One violation of one message."""

    violation: Violation
    id: str
    events: tuple[Event, ...]

    def __str__(self) -> str:
        story = "\n  ".join(map(str, self.events))
        return f"{self.id}: {self.violation.value}\n  {story}"


class History:
    """Records calls while they run; an event that is never ended has an unknown outcome."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def begin(self, op: Op, message_id: str, began_us: int, **fields: int | str) -> Event:
        """Record the begin of a call; `end` its event when its answer arrives."""
        event = Event(op, message_id, began_us, **fields)  # type: ignore[arg-type]
        self.events.append(event)
        return event

    def delivered(self, message_id: str, handed_us: int, *, lease: int, expires_us: int, consumer: str) -> None:
        """Record a delivery to user code; its lease may have been created at any earlier time."""
        event = self.begin(Op.DELIVER, message_id, 0, lease=lease, expires_us=expires_us, consumer=consumer)
        event.end(handed_us, CallOutcome.OK)

    def check(self, left: Collection[str] = ()) -> list[HistoryFinding]:
        """Every violation, after a full drain that left only `left` in the store."""
        return check(self.events, left)


def check(events: Iterable[Event], left: Collection[str] = ()) -> list[HistoryFinding]:
    """Every violation in `events`, when the store still has the messages `left`."""
    histories: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        histories[event.id].append(event)
    return [
        HistoryFinding(violation, message_id, tuple(history))
        for message_id, history in histories.items()
        for violation in _violations(history, left=message_id in left)
    ]


def check_ledger(ledger: DeliveryLedger, left: Collection[str] = ()) -> list[HistoryFinding]:
    """Every violation in the ledger of a workload."""
    return check(_events_of(ledger), left)


def _violations(history: list[Event], *, left: bool) -> Iterator[Violation]:
    creates = _possible(history, Op.CREATE)
    deliveries = sorted(_possible(history, Op.DELIVER), key=lambda event: (event.lease, event.ended_us))
    ends = _possible(history, Op.DELETE) + _possible(history, Op.CANCEL)
    if any(event.outcome is CallOutcome.OK for event in creates) and not left and not ends:
        yield Violation.LOST
    if deliveries and not any(event.began_us <= deliveries[0].ended_us for event in creates):
        yield Violation.UNEXPECTED
    times = creates + _possible(history, Op.MOVE) + _possible(history, Op.RELEASE)
    if times and any(event.ended_us < min(time.ts_us for time in times) for event in deliveries):
        yield Violation.EARLY
    pairs = [(first, second) for place, first in enumerate(deliveries) for second in deliveries[place + 1 :]]
    if any(_overlap(first, second, history) for first, second in pairs):
        yield Violation.OVERLAP
    if any(_twice(first, second) for first, second in pairs) or _after_the_end(deliveries, ends):
        yield Violation.UNEXPLAINED
    if not linearizable(history, left=left):
        yield Violation.UNORDERED


def _possible(history: list[Event], op: Op) -> list[Event]:
    return [event for event in history if event.op is op and event.outcome is not CallOutcome.REFUSED]


def _overlap(first: Event, second: Event, history: list[Event]) -> bool:
    """Whether the second lease was live while the first was certainly live."""
    if first.lease == second.lease:
        return False
    own = [event for event in history if event.lease == first.lease and event.outcome is not CallOutcome.REFUSED]
    extended = [event.expires_us for event in own if event.op is Op.EXTEND and event.outcome is CallOutcome.OK]
    leaving = [event.began_us for event in own if event.op in (Op.RELEASE, Op.DELETE)]
    return second.ended_us < min([max([first.expires_us, *extended]), *leaving])


def _twice(first: Event, second: Event) -> bool:
    """One lease reaches the code of one consumer once; a consumer that reconnected counts as another consumer."""
    return (first.lease, first.consumer) == (second.lease, second.consumer)


def _after_the_end(deliveries: list[Event], ends: list[Event]) -> bool:
    done = [event.ended_us for event in ends if event.outcome is CallOutcome.OK]
    return bool(done) and any(event.ended_us > min(done) for event in deliveries)


def _events_of(ledger: DeliveryLedger) -> Iterator[Event]:
    for send in ledger.sends.values():
        create = Event(Op.CREATE, send.name, 0, ts_us=send.ts_ms * 1_000)
        create.end(NEVER, send.outcome)
        yield create
    for delivery in (one for deliveries in ledger.deliveries.values() for one in deliveries):
        handed = Event(
            Op.DELIVER,
            delivery.name,
            0,
            lease=delivery.version,
            expires_us=delivery.expires_ms * 1_000,
            consumer=delivery.consumer,
        )
        handed.end(delivery.handed_us, CallOutcome.OK)
        yield handed
        for settle in delivery.settles:
            event = Event(
                {
                    SettlementKind.DELETE: Op.DELETE,
                    SettlementKind.RELEASE: Op.RELEASE,
                    SettlementKind.EXTEND: Op.EXTEND,
                }[settle.kind],
                delivery.name,
                settle.began_us,
                lease=delivery.version,
                ts_us=settle.until_ms * 1_000,
                expires_us=settle.until_ms * 1_000,
                # The broker counts from the time at which it handles the call. After a break of the connection, an SDK
                # that finds its message gone reports it as deleted.
                slack_us=max(0, settle.ended_us - settle.began_us),
                repeatable=True,
            )
            if settle.outcome is not CallOutcome.UNKNOWN:
                event.end(settle.ended_us or NEVER, settle.outcome)
            yield event
