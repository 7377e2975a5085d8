"""The cluster: brokers, topics, clients, and the time."""

from __future__ import annotations

import msgspec

from dejaq.web.api.operation import ApiAnswer, ApiCall
from dejaq.web.api.times import iso_of


class TimeValue(msgspec.Struct):
    """The broker's clock as the gateway estimates it, and the round trip to a broker."""

    now: str
    now_ms: int
    latency_ms: float


async def read_info(call: ApiCall) -> ApiAnswer:
    """The brokers with their health, the topics with exact counts, and the clients."""
    return ApiAnswer(await call.client.info())


async def read_time(call: ApiCall) -> ApiAnswer:
    """The broker's clock."""
    pong = await call.client.ping()
    now = call.client.now_ms()
    return ApiAnswer(TimeValue(iso_of(now), now, pong.latency_ms))
