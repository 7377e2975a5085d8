"""The security log of one broker: what callers tried and changed, written to signed segments off the event loop.

Events wait in memory until they are written, at most a second later, or ten seconds later while there are many. Equal
events that wait are counted as one, so that a caller that is refused again and again fills neither memory nor disk.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from dejaq import limits
from dejaq.broker.doctor import Doctor
from dejaq.broker.metrics import SECURITY_EVENTS, Labels, Metrics
from dejaq.config import BrokerConfig
from dejaq.domain.context import CallContext
from dejaq.errors import DejaqError
from dejaq.timekeeper.clock import Clock

if TYPE_CHECKING:
    from dejaq.journal.ledger import Ledger

log = logging.getLogger(__name__)

NEEDED = ("pyarrow", "cryptography")
INTERVAL_SECONDS, BUSY_SECONDS = 1.0, 10.0
# So many segments in a row, one for each interval, make the log busy.
BUSY_AFTER = 30
_TEXT_CHARS_MAX = 500
OK, REFUSED = "ok", "refused"


@dataclass(frozen=True, slots=True)
class _EventKind:
    """An event without its time and number: equal ones are counted."""

    event: str
    outcome: str
    principal: str
    peer: str
    target: str
    reason: str


@dataclass(slots=True)
class _UnwrittenEvent:
    at_ms: int
    request: str
    count: int


class SecurityAudit:
    """Records events and writes them."""

    def __init__(self, *, config: BrokerConfig, clock: Clock, doctor: Doctor, metrics: Metrics, enabled: bool) -> None:
        self._broker = config.name
        self._clock = clock
        self._doctor = doctor
        self._metrics = metrics
        self._home = Path(config.data) if enabled and config.data is not None and _can_write() else None
        self._waiting: dict[_EventKind, _UnwrittenEvent] = {}
        # Events that found no place.
        self._dropped = 0
        self._news = asyncio.Event()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="dejaq-security")
        self._ledger: Ledger | None = None
        self._in_a_row = 0
        if enabled and self._home is None:
            log.warning("no security log is kept: it needs a data directory and what dejaq-mq[pipeline] installs")

    @property
    def kept(self) -> bool:
        """Whether there is a log."""
        return self._home is not None

    def waiting(self) -> Mapping[Labels, float]:
        """How many different events are not written yet, for the metrics."""
        return {(): float(len(self._waiting))}

    def record(
        self, context: CallContext, event: str, *, target: str = "", outcome: str = OK, reason: str = ""
    ) -> None:
        """Note what a caller did or tried to do; returns at once."""
        self._metrics.add(SECURITY_EVENTS, 1, event, outcome)
        if self._home is None:
            return
        # Ports differ between the connections of one caller.
        peer = context.peer.rpartition(":")[0] or context.peer
        what = _EventKind(event, outcome, context.principal.name, peer, _short(target), _short(reason))
        known = self._waiting.get(what)
        if known is not None:
            known.count += 1
        elif len(self._waiting) < limits.SECURITY_EVENTS_WAITING_MAX:
            self._waiting[what] = _UnwrittenEvent(self._clock.now_ms(), context.request_id, 1)
            self._news.set()
        else:
            self._dropped += 1
            self._doctor.report("security_log", f"the security log is full: {self._dropped} events are lost")

    def refused(self, context: CallContext, action: str, reason: str) -> None:
        """Note a refusal."""
        self.record(context, "refused", target=action, outcome=REFUSED, reason=reason)

    def changed_many(self, context: CallContext, command: str, target: str) -> None:
        """Note that a producer changed many messages by one command."""
        self.record(context, f"bulk_{command}", target=target)

    def entered(self, context: CallContext) -> None:
        """Note that an authenticated caller began a session."""
        self.record(context, "login", target=context.session_id)

    def refused_caller(self, credentials: object, peer: str, error: DejaqError) -> None:
        """Note a caller whose credentials were not accepted; of the credentials, nothing is recorded."""
        self.record(CallContext("", peer), "login", outcome=REFUSED, reason=error.message)

    async def start(self) -> None:
        """Find the end of the log; raises when its directory cannot be used."""
        if self._home is not None:
            await self._in_thread(self._open)

    async def run(self) -> None:
        """Write what waits, until cancelled. While the disk fails the broker serves and reports a degradation."""
        while True:
            await self._news.wait()
            await self._clock.sleep(BUSY_SECONDS if self._in_a_row >= BUSY_AFTER else INTERVAL_SECONDS)
            self._news.clear()
            await self.flush()
            self._in_a_row = self._in_a_row + 1 if self._news.is_set() else 0

    async def flush(self) -> None:
        """Write what waits now."""
        if not self._waiting and not self._dropped:
            return
        waiting, self._waiting = self._waiting, {}
        dropped, self._dropped = self._dropped, 0
        try:
            await self._in_thread(lambda: self._append(waiting, dropped))
            self._doctor.report("security_log", None)
        except Exception as fault:  # noqa: BLE001 - whatever it is, the events wait for the next try
            self._ledger = None
            later, self._waiting = self._waiting, waiting
            for what, one in later.items():
                known = self._waiting.get(what)
                if known is not None:
                    known.count += one.count
                elif len(self._waiting) < limits.SECURITY_EVENTS_WAITING_MAX:
                    self._waiting[what] = one
                else:
                    dropped += one.count
            self._dropped += dropped
            self._news.set()
            self._doctor.report("security_log", f"the security log cannot be written; its events wait: {fault}")

    async def stop(self) -> None:
        """Write the rest."""
        if self._home is not None:
            await self.flush()
        await asyncio.to_thread(self._thread.shutdown)

    async def _in_thread(self, work: object) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, work)  # type: ignore[arg-type]

    def _open(self) -> Ledger:
        from dejaq.journal.keys import SigningKey
        from dejaq.journal.ledger import Ledger
        from dejaq.journal.origin import origin_of
        from dejaq.journal.security.events import DIRECTORY, KEY, ORIGIN, write_events

        assert self._home is not None
        origin = origin_of(self._home / ORIGIN)
        key = SigningKey.of(self._home / KEY)
        self._ledger = Ledger.open(self._home / DIRECTORY, origin=origin, key=key, write=write_events)
        return self._ledger

    def _append(self, waiting: Mapping[_EventKind, _UnwrittenEvent], dropped: int) -> None:
        from dejaq.journal.security.events import SecurityEvent

        ledger = self._ledger or self._open()
        now_ms = self._clock.now_ms()
        found = [(one.at_ms, what, one) for what, one in waiting.items()]
        if dropped:
            lost = _EventKind("events lost", REFUSED, "broker", "", "", "more events than the log could keep waiting")
            found.append((now_ms, lost, _UnwrittenEvent(now_ms, "", dropped)))
        found.sort(key=lambda entry: entry[0])
        events = [
            SecurityEvent(
                sequence=sequence,
                at_ms=at_ms,
                event=what.event,
                outcome=what.outcome,
                principal=what.principal,
                peer=what.peer,
                target=what.target,
                reason=what.reason,
                request=one.request,
                count=one.count,
                broker=self._broker,
            )
            for sequence, (at_ms, what, one) in enumerate(found, ledger.last + 1)
        ]
        ledger.append([event.packed() for event in events], now_ms)


def _short(text: str) -> str:
    return text if len(text) <= _TEXT_CHARS_MAX else text[: _TEXT_CHARS_MAX - 3] + "..."


def _can_write() -> bool:
    return all(find_spec(name) is not None for name in NEEDED)
