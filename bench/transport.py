"""What a frame costs on each endpoint of a broker: python -m bench.transport

One session with a broker in a process of its own: pings and unary calls one after another, then frames that the session
refuses at once, so that only the transport and the reading of frames count.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import time
from collections.abc import Awaitable, Callable

from dejaq.protocol.channel import GrpcTransport
from dejaq.protocol.transport import SessionChannel, Transport
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1 import overseer_pb2 as overseer
from dejaq.protocol.websocket.transport import WebSocketTransport
from dejaq.testing.servers.process import BrokerProcess

ROUNDS = 3_000
WINDOW = 32
SIZES = {"120 B": (120, 20_000), "110 kB": (110_000, 3_000)}


def broker_cpu(pid: int) -> float:
    """The seconds of CPU that a process has used."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def round_trips_us(once: Callable[[], Awaitable[object]]) -> float:
    """The median time of one request and its answer."""
    for _ in range(200):
        await once()
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        await once()
        times.append(time.perf_counter() - began)
    return round(statistics.median(times) * 1e6, 1)


async def stream_of(session: SessionChannel, body_bytes: int, count: int, pid: int) -> dict[str, float]:
    """Frames of this size, so many in flight, each refused with a short answer."""
    create = carrier.CreateBatch(bodies=[bytes(body_bytes)])
    waiting = asyncio.Semaphore(WINDOW)
    wall, client, broker = time.perf_counter(), time.process_time(), broker_cpu(pid)

    async def read() -> None:
        for _ in range(count):
            await session.receive()
            waiting.release()

    reading = asyncio.ensure_future(read())
    for number in range(1, count + 1):
        await waiting.acquire()
        await session.send(carrier.ClientFrame(request=number, create=create))
    await reading
    wall = time.perf_counter() - wall
    return {
        "frames_per_second": round(count / wall),
        "client_cpu_us": round((time.process_time() - client) / count * 1e6, 1),
        "broker_cpu_us": round((broker_cpu(pid) - broker) / count * 1e6, 1),
    }


async def measure(transport: Transport, pid: int) -> dict[str, object]:
    """The figures of one endpoint."""
    session = await transport.session()
    ping = carrier.ClientFrame(request=1, ping=carrier.Ping(client_us=1))

    async def in_session() -> None:
        await session.send(ping)
        await session.receive()

    async def call() -> None:
        await transport.call("Overseer.Ping", overseer.PingRequest(), overseer.PingResponse, 5.0)

    figures: dict[str, object] = {
        "session_round_trip_us": await round_trips_us(in_session),
        "call_round_trip_us": await round_trips_us(call),
    }
    for name, (size, count) in SIZES.items():
        figures[name] = await stream_of(session, size, count, pid)
    await session.close()
    await transport.close()
    return figures


async def main() -> None:
    async with BrokerProcess(grpc=True) as broker:
        for name, transport in (
            ("gRPC", GrpcTransport(broker.client_address)),
            ("WebSocket", WebSocketTransport(broker.address)),
        ):
            print(json.dumps({"endpoint": name, **await measure(transport, broker.pid)}), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
