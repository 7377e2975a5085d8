"""Compares the clock of this broker with the clocks of the other brokers, and reports a clock that is wrong."""

from __future__ import annotations

import asyncio
import logging

from dejaq.broker.cluster.connections import PeerConnections
from dejaq.broker.cluster.membership import Membership
from dejaq.broker.cluster.offsets import Offsets, OffsetSample
from dejaq.broker.doctor import Doctor
from dejaq.errors import DejaqError
from dejaq.protocol.v1 import overseer_pb2 as overseer
from dejaq.timekeeper.clock import Clock

log = logging.getLogger(__name__)

PING_SECONDS = 1.0


class ClockComparison:
    """Measures the offset of each other clock, and informs the doctor whether this broker's clock may be used."""

    def __init__(
        self,
        *,
        membership: Membership,
        connections: PeerConnections,
        offsets: Offsets,
        doctor: Doctor,
        clock: Clock,
        offset_ms_max: int,
    ) -> None:
        self._membership = membership
        self._connections = connections
        self._offsets = offsets
        self._doctor = doctor
        self._clock = clock
        self._offset_ms_max = offset_ms_max

    async def compare(self) -> None:
        """Ask every other broker for its time, and report this clock when it is too far from theirs."""
        others = self._membership.others
        gap_ms = self._doctor.clock_gap_ms
        answered = await asyncio.gather(*(self._ping(broker) for broker in others))
        tokens = {broker: member.token for broker, member in others.items()}
        deviation = self._offsets.deviation_ms(tokens, own_token=self._membership.token)
        if abs(deviation) > self._offset_ms_max:
            way = "ahead of" if deviation > 0 else "behind"
            self._doctor.report(
                "drift",
                f"the clock is {abs(deviation):.0f} ms {way} those of the other brokers, more than "
                f"{self._offset_ms_max} ms; set it right",
            )
        elif any(answered) or not others:
            # The gap was read before the measurement: the clock may have jumped since.
            self._doctor.trust_clock(gap_ms, confirmed=any(answered))
            self._doctor.report("drift", None)
        self._doctor.look()

    async def _ping(self, broker: str) -> bool:
        """Measure how far another clock is from this one; returns whether that broker answered."""
        sent_us, sent = self._clock.now_us(), self._clock.monotonic()
        try:
            request = overseer.PingRequest(client_us=sent_us)
            answer = await self._connections.call(broker, "Overseer.Ping", request, overseer.PingResponse, PING_SECONDS)
        except DejaqError as error:
            log.debug("broker %s does not answer: %s", broker, error)
            return False
        took_ms = (self._clock.monotonic() - sent) * 1_000
        offset_ms = (answer.broker_us - sent_us) / 1_000 - took_ms / 2
        self._offsets.add(broker, OffsetSample(offset_ms=offset_ms, round_trip_ms=took_ms))
        return True

    def offsets_ms(self) -> dict[str, float]:
        """The best measured offset of each other clock."""
        best = {broker: self._offsets.best(broker) for broker in self._membership.others}
        return {broker: sample.offset_ms for broker, sample in best.items() if sample is not None}
