"""The cluster: brokers, topics, clients, and the time."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from dejaq.web.api.operation import ApiAnswer, ApiCall
from dejaq.web.api.times import iso_of
from dejaq.web.live.views import lateness_of
from dejaq.web.metrics.history import LatenessOverTime, TopicRates


class LatenessQuery(msgspec.Struct, forbid_unknown_fields=True):
    """One topic, or all; `fine` steps are five seconds over twenty minutes, the others minutes over twelve hours."""

    topic: Annotated[str, Meta(max_length=200)] = ""
    fine: bool = False


class LatenessValue(msgspec.Struct):
    """How late messages were pushed over time, and the rates of each topic now; `problem` is why there is nothing."""

    lateness: LatenessOverTime
    rates: dict[str, TopicRates]
    began_ms: int | None
    problem: str


class TimeValue(msgspec.Struct):
    """The broker's clock as the gateway estimates it, and the round trip to a broker."""

    now: str
    now_ms: int
    latency_ms: float


async def read_info(call: ApiCall) -> ApiAnswer:
    """The brokers with their health, the topics with exact counts, and the clients."""
    return ApiAnswer(await call.client.info())


async def read_lateness(call: ApiCall) -> ApiAnswer:
    """Lateness and rates as the gateway has read them from the metrics of the brokers since it started."""
    query: LatenessQuery = call.query
    found = await lateness_of(call.client, call.gateway.history, query.topic, fine=query.fine)
    return ApiAnswer(found)


async def read_time(call: ApiCall) -> ApiAnswer:
    """The broker's clock."""
    pong = await call.client.ping()
    now = call.client.now_ms()
    return ApiAnswer(TimeValue(iso_of(now), now, pong.latency_ms))
