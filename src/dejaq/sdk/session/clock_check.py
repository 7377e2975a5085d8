"""Compares clocks outside a session; a session's pings compare them all the time."""

from __future__ import annotations

from dejaq.errors import DejaqError
from dejaq.protocol.v1 import overseer_pb2 as overseer
from dejaq.sdk.session.broker_clock import BrokerClock
from dejaq.sdk.session.seeds import Seeds
from dejaq.sdk.session.settings import ClientSettings

PING = "Overseer.Ping"
# When an exchange takes longer than this, an old estimate is better than none.
TRY_SECONDS = 1.0


async def compare_clocks(seeds: Seeds, settings: ClientSettings, broker_clock: BrokerClock) -> int:
    """Ask a broker for its time; returns the duration of the exchange in microseconds."""
    request = overseer.PingRequest(client_us=settings.clock.now_us())
    sent = settings.clock.monotonic()
    answer = await seeds.call(PING, request, overseer.PingResponse, patience=settings)
    return broker_clock.observe(sent=sent, broker_us=answer.broker_us)


async def freshen(seeds: Seeds, settings: ClientSettings, broker_clock: BrokerClock) -> None:
    """Compare clocks again if the last comparison is old; when that fails, the estimate stays as it was."""
    if broker_clock.fresh:
        return
    request = overseer.PingRequest(client_us=settings.clock.now_us())
    sent = settings.clock.monotonic()
    try:
        answer = await seeds.first().call(PING, request, overseer.PingResponse, TRY_SECONDS)
    except DejaqError:
        return
    broker_clock.observe(sent=sent, broker_us=answer.broker_us)
