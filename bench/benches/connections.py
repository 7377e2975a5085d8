"""Idle connections: the memory and the processor time of each at the broker, with and without a session."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from bench.harness.apart import apart
from bench.harness.figures import Figures
from bench.harness.stage import Outcome, Stage, staged
from bench.plan import Plan
from bench.systems.base import System
from dejaq.protocol.transport import SessionChannel
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.version import PROTOCOL
from dejaq.protocol.websocket.transport import WebSocketTransport
from dejaq.sdk.session.pings import COMMON_SECONDS, IDLE_FACTOR, PING_SECONDS

OPENED_AT_ONCE = 50
SETTLE_SECONDS = 2.0
OPEN_SECONDS_MAX = 300.0


def run(system: System, plan: Plan) -> Iterator[Outcome]:
    """An outcome without sessions, and one with a session on each connection, each on a broker of its own."""
    for sessions in (False, True):
        with staged(system) as stage:
            yield Outcome(
                shape={"connections": plan.sizes.connections, "sessions": sessions},
                figures=_measure(stage, plan.sizes.connections, plan.sizes.connections_seconds, sessions=sessions),
                actual={},
            )


def _measure(stage: Stage, count: int, seconds: float, *, sessions: bool) -> Figures:
    before = stage.rss_mb()
    with ThreadPoolExecutor(1) as pool:
        most = OPEN_SECONDS_MAX + seconds
        holding = pool.submit(apart, hold, stage.server.address, count, seconds, sessions, seconds_max=most)
        while _open(stage) < count and not holding.done():
            time.sleep(0.1)
        time.sleep(SETTLE_SECONDS)
        rss, cpu, began = stage.rss_mb(), stage.cpu_seconds(), time.monotonic()
        time.sleep(max(1.0, seconds - 2 * SETTLE_SECONDS))
        cpu, took = stage.cpu_seconds() - cpu, time.monotonic() - began
        held = _open(stage)
        holding.result()
    if held < count:
        raise RuntimeError(f"{count - held} of {count} connections were lost")
    return {
        "connection_kb": round((rss - before) * 1_000 / count, 1),
        "idle_cpu_percent": round(100 * cpu / took, 2),
        "rss_mb": rss,
    }


def _open(stage: Stage) -> int:
    """The connections that the broker has accepted."""
    port = int(stage.server.address.rpartition(":")[2])
    with open(f"/proc/{stage.server.pid}/net/tcp") as table:
        rows = [line.split() for line in table.readlines()[1:]]
    # The state 01 is an established connection.
    return sum(1 for row in rows if row[3] == "01" and int(row[1].rpartition(":")[2], 16) == port)


async def hold(address: str, count: int, seconds: float, sessions: bool) -> None:
    """Open the connections, and keep them for so long, as the SDK does."""
    transports = [WebSocketTransport(address) for _ in range(count)]
    opened: list[SessionChannel] = []
    for start in range(0, count, OPENED_AT_ONCE):
        part = transports[start : start + OPENED_AT_ONCE]
        channels = await asyncio.gather(*(transport.session() for transport in part))
        for channel in channels:
            if sessions:
                hello = carrier.Hello(protocol=PROTOCOL, sdk="bench", client="idle")
                await channel.send(carrier.ClientFrame(request=1, hello=hello))
                await channel.receive()
                opened.append(channel)
            else:
                await channel.close()
    pinging = [asyncio.ensure_future(_ping(channel, place / count)) for place, channel in enumerate(opened)]
    await asyncio.sleep(seconds + SETTLE_SECONDS)
    for task in pinging:
        task.cancel()
    for transport in transports:
        await transport.close()


async def _ping(channel: SessionChannel, share: float) -> None:
    """Ping as an idle session does whose client reads another clock than the broker; others ping less."""
    seconds = share * PING_SECONDS * IDLE_FACTOR
    while True:
        await asyncio.sleep(seconds - time.monotonic() % COMMON_SECONDS)
        await channel.send(carrier.ClientFrame(request=2, ping=carrier.Ping(client_us=1)))
        await channel.receive()
        seconds = PING_SECONDS * IDLE_FACTOR
