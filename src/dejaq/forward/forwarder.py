"""The forwarder: reads from a source, writes to a sink, and only then acknowledges."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from dejaq.domain.backoff import Backoff
from dejaq.errors import DejaqError
from dejaq.forward.base import Parcel, Sink, Source

log = logging.getLogger("dejaq.forward")
T = TypeVar("T")

BATCH = 500
# How long a cancelled read may take before it is cancelled again.
CANCEL_SECONDS = 1.0
# How long to wait before asking a queue again that does not answer.
OUTAGE = Backoff.exponential(first=0.2, longest=5.0, jitter=0.0)


@dataclass(slots=True)
class ForwardStats:
    """The numbers of moved messages, of messages that the sink refused, and of failed attempts to reach a queue."""

    moved: int = 0
    refused: int = 0
    outages: int = 0


class Forwarder:
    """Moves messages until it is stopped.

    Each arrives at least once, and a sink that recognises repeats has it once. `transfer`, if given, moves messages
    in one step and returns the reason by position of each refused one, or None if it cannot.
    """

    def __init__(
        self,
        source: Source,
        sink: Sink,
        *,
        batch: int = BATCH,
        transfer: Callable[[Sequence[Parcel]], Awaitable[Mapping[int, str] | None]] | None = None,
    ) -> None:
        self.stats = ForwardStats()
        self._source = source
        self._sink = sink
        self._batch = batch
        self._transfer = transfer
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Read no more; `run` returns when all messages that were read have been moved."""
        self._stopping.set()

    async def run(self, *, max_messages: int | None = None, idle: float | None = None) -> None:
        """Move until `stop`, until this number of messages, or until this many seconds without a message; continues
        after outages.
        """
        opened: list[Source | Sink] = []
        try:
            for end in (self._source, self._sink):
                opened.append(end)
                await end.open()
            log.info("started", extra={"dejaq": {"event": "started"}})
            while not self._stopping.is_set() and (max_messages is None or self.stats.moved < max_messages):
                limit = self._batch if max_messages is None else min(self._batch, max_messages - self.stats.moved)
                parcels = await self._read(limit, idle)
                if not parcels:
                    break
                await self._move(parcels)
        finally:
            for end in reversed(opened):
                await end.close()
        fields = {"event": "stopped", "moved": self.stats.moved, "refused": self.stats.refused}
        log.info("stopped moved=%d refused=%d", self.stats.moved, self.stats.refused, extra={"dejaq": fields})

    async def _read(self, limit: int, idle: float | None) -> Sequence[Parcel]:
        reading = asyncio.ensure_future(self._patiently(lambda: self._source.read(limit)))
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({reading, stopping}, timeout=idle, return_when=asyncio.FIRST_COMPLETED)
            return reading.result() if reading.done() else ()
        finally:
            stopping.cancel()
            # A cancellation that arrives with an answer or a time-out may be lost in Python 3.11: it is repeated.
            while not reading.done():
                reading.cancel()
                await asyncio.wait({reading}, timeout=CANCEL_SECONDS)

    async def _move(self, parcels: Sequence[Parcel]) -> None:
        damaged = [parcel for parcel in parcels if parcel.fault]
        for parcel in damaged:
            await self._refuse(parcel, parcel.fault)
        if damaged:
            parcels = [parcel for parcel in parcels if not parcel.fault]
            if not parcels:
                return
        transfer = self._transfer
        refused = await self._patiently(lambda: transfer(parcels)) if transfer is not None else None
        if refused is None:
            refused = await self._write(parcels)
        self.stats.moved += len(parcels) - len(refused)
        for place, reason in refused.items():
            await self._refuse(parcels[place], reason)

    async def _write(self, parcels: Sequence[Parcel]) -> Mapping[int, str]:
        """Write messages and then acknowledge those that were not refused; the reasons by position of the others."""
        refused = await self._patiently(lambda: self._sink.write(parcels))
        good = [parcel for place, parcel in enumerate(parcels) if place not in refused]
        if good:
            await self._patiently(lambda: self._source.ack(good))
        return refused

    async def _refuse(self, parcel: Parcel, reason: str) -> None:
        self.stats.refused += 1
        fields = {"event": "refused", "id": parcel.id, "reason": reason}
        log.warning("refused id=%s: %s", parcel.id, reason, extra={"dejaq": fields})
        await self._source.reject(parcel, reason)

    async def _patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        """Make a repeatable call until it is answered; raises errors that a repeat cannot solve.

        Once the forwarder has been asked to stop, it does not wait for an outage: what it read comes again.
        """
        tries = 0
        while True:
            try:
                return await work()
            except DejaqError as error:
                if not error.retryable or self._stopping.is_set():
                    raise
                tries += 1
                self.stats.outages += 1
                log.warning("outage: %s", error, extra={"dejaq": {"event": "outage", "reason": str(error)}})
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), OUTAGE.delay_ms(tries, 0.0) / 1_000)
