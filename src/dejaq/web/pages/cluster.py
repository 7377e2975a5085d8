"""The pages of the cluster and of its clients."""

from __future__ import annotations

from collections import defaultdict

from starlette.requests import Request

from dejaq.errors import DejaqError
from dejaq.sdk.admin.access import AccessCalls, SessionInfo
from dejaq.web.gateway import Gateway
from dejaq.web.pages.route import Values


async def clients_page(request: Request, gateway: Gateway) -> Values:
    """Consumers and producers with what they hold, the rates of their topics, and sessions that can be ended."""
    info = await gateway.client.info()
    sessions: list[SessionInfo] = []
    problem = ""
    try:
        sessions = await AccessCalls(gateway.client).sessions()
    except DejaqError as error:
        problem = error.message
    return {
        "info": info,
        "rates": gateway.history.rates({topic.name for topic in info.topics}),
        "topics": {topic.name: topic for topic in info.topics},
        "sessions": sessions,
        "problem": problem,
        "now": gateway.client.now_ms(),
    }


async def cluster_page(request: Request, gateway: Gateway) -> Values:
    """Members with their clocks, and which broker serves which buckets of a topic."""
    info = await gateway.client.info()
    held: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for client in info.clients:
        if client.topic:
            held[client.topic][client.broker] += 1
    return {"info": info, "held": held, "shards": info.shards, "now": gateway.client.now_ms()}
