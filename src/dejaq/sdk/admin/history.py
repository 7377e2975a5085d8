"""The life of one message, as the journals recorded it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dejaq import limits
from dejaq.protocol.v1 import history_pb2 as history
from dejaq.sdk.session.seeds import Seeds
from dejaq.sdk.session.settings import ClientSettings

# The message is not on the timeline of its topic after these.
_LAST = frozenset({"cancelled", "deleted", "dead_lettered", "topic_dropped"})


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """One recorded change of a message: when, what, and by which producer group or consumer (`actor`).

    `kind` is one of created, leased, extended, released, expired, recalled, moved, edited, cancelled, deleted,
    dead_lettered and topic_dropped. A field that does not concern the kind is None, and `lease` is 0.
    """

    at_ms: int
    kind: str
    actor: str
    lease: int
    expires_ms: int | None
    ts_ms: int | None
    priority: int | None
    attempts: int | None
    body_bytes: int | None
    body_crc: int | None
    # When the SDK handed the message to user code, in us of the broker's clock.
    handed_us: int | None
    # The journal, the record in it, and the position in the record.
    origin: str
    sequence: int
    row: int
    ticket: int
    # The authenticated caller; empty for none.
    principal: str = ""

    @classmethod
    def from_proto(cls, proto: history.HistoryEvent) -> HistoryEvent:
        """The event that the broker's answer describes."""

        def given(name: str) -> int | None:
            return getattr(proto, name) if proto.HasField(name) else None

        return cls(
            at_ms=proto.at_ms,
            kind=proto.kind,
            actor=proto.actor,
            lease=proto.lease,
            expires_ms=given("expires_ms"),
            ts_ms=given("ts_ms"),
            priority=given("priority"),
            attempts=given("attempts"),
            body_bytes=given("body_bytes"),
            body_crc=given("body_crc"),
            handed_us=given("handed_us"),
            origin=proto.origin,
            sequence=proto.sequence,
            row=proto.row,
            ticket=proto.ticket,
            principal=proto.principal,
        )


@dataclass(frozen=True, slots=True)
class MessageHistory:
    """What the journals know of one message id, the oldest event first.

    `notes` are sentences about journals that could not be searched. `cursor` continues a search that ended before every
    journal was searched; it is empty when the search is complete.
    """

    events: tuple[HistoryEvent, ...]
    notes: tuple[str, ...] = ()
    cursor: bytes = b""

    @property
    def complete(self) -> bool:
        """Whether every journal that a broker of the cluster has was searched."""
        return not self.cursor


class HistoryClient:
    """Asks for the pages of a history."""

    def __init__(self, seeds: Seeds, settings: ClientSettings) -> None:
        self._seeds = seeds
        self._settings = settings

    async def read(self, topic: str, id: str, *, count: int, seconds: float, cursor: bytes) -> MessageHistory:
        """Ask for pages until the journals are searched, `count` events are found, or the time is over."""
        until = self._settings.clock.monotonic() + seconds
        found: dict[tuple[str, int, int], HistoryEvent] = {}
        notes: list[str] = []
        while True:
            page = max(1, min(count - len(found), limits.HISTORY_EVENTS_MAX))
            request = history.HistoryRequest(topic=topic, id=id, cursor=cursor, count=page)
            answer = await self._seeds.call(
                "Carrier.History", request, history.HistoryResponse, patience=self._settings
            )
            for event in map(HistoryEvent.from_proto, answer.events):
                found[event.origin, event.sequence, event.row] = event
            notes += (note for note in answer.notes if note not in notes)
            cursor = answer.cursor
            if not cursor or len(found) >= count or self._settings.clock.monotonic() >= until:
                events = _ordered(found.values())
                return MessageHistory(tuple(_of_message(events, whole=not cursor)), tuple(notes), cursor)


def _ordered(events: Iterable[HistoryEvent]) -> list[HistoryEvent]:
    """Events in causal order: by the tickets of a shared store, otherwise by time and then by record."""
    listed = list(events)
    if all(event.ticket for event in listed):
        return sorted(listed, key=lambda event: (event.ticket, event.origin, event.row))
    return sorted(listed, key=lambda event: (event.at_ms, event.sequence, event.row))


def _of_message(events: Iterable[HistoryEvent], *, whole: bool) -> Iterator[HistoryEvent]:
    """Leave out the ends of topics at which the message was not there."""
    present = not whole
    for event in events:
        if event.kind != "topic_dropped" or present:
            yield event
        present = event.kind not in _LAST
