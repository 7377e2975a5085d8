"""The pages: each is rendered on the server from what the brokers answer, with everything escaped."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import fields
from typing import Any
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dejaq.domain.dead_letter import TOPIC
from dejaq.domain.topic import TopicKind, TopicSettings
from dejaq.errors import DejaqError, Missing
from dejaq.web.api.filters import PageQuery, conditions_of, cursor_of, opaque
from dejaq.web.api.table import operations
from dejaq.web.gateway import Gateway
from dejaq.web.pages.bodies import shown_body
from dejaq.web.pages.rendering import page, problem_page

# What one page lists at most.
ROWS = 100
TOPICS_MAX = 1_000
HISTORY_SECONDS = 1.0
Values = dict[str, Any]
Shown = Callable[[Request, Gateway], Awaitable[Values]]


def page_routes() -> list[Route]:
    """Every page and its address."""
    return [
        _route("/", "overview.html", _overview),
        _route("/topics", "topics.html", _topics),
        _route("/topics/{topic:topic}", "topic.html", _topic),
        _route("/topics/{topic:topic}/messages", "messages.html", _messages),
        _route("/topics/{topic:topic}/messages/{id}", "message.html", _message),
        _route("/topics/{topic:topic}/due", "due.html", _named),
        _route("/topics/{topic:topic}/produce", "produce.html", _named),
        _route("/topics/{topic:topic}/consume", "consume.html", _named),
        _route("/topics/{topic:topic}/dead-letters", "dead_letters.html", _dead_letters),
        _route("/topics/{topic:topic}/schedules", "schedules.html", _schedules),
        _route("/clients", "clients.html", _overview),
        _route("/api", "api.html", _api),
    ]


def _route(path: str, template: str, shown: Shown) -> Route:
    async def endpoint(request: Request) -> Response:
        gateway: Gateway = request.app.state.gateway
        try:
            values = await shown(request, gateway)
        except DejaqError as error:
            return problem_page(request, gateway, error)
        return page(request, gateway, template, **values)

    return Route(path, endpoint, methods=["GET"])


async def _overview(request: Request, gateway: Gateway) -> Values:
    info = await gateway.client.info()
    return {"info": info, "now": gateway.client.now_ms()}


async def _topics(request: Request, gateway: Gateway) -> Values:
    search = request.query_params.get("q", "")[:100]
    topics = [topic for topic in await gateway.client.topics() if search.lower() in topic.name.lower()]
    settings = [
        {
            "name": one.name,
            "doc": one.metadata["doc"].replace("`", ""),
            "default": str(one.default) if isinstance(one.default, str) else json.dumps(one.default),
            "kind": "flag" if isinstance(one.default, bool) else "number" if isinstance(one.default, int) else "text",
            "choices": _CHOICES.get(one.name, ()),
        }
        for one in fields(TopicSettings)
    ]
    return {"topics": topics[:TOPICS_MAX], "total": len(topics), "search": search, "settings": settings}


_CHOICES = {
    "kind": tuple(str(kind) for kind in TopicKind),
    "durability": ("fsync", "relaxed"),
    "compression": ("none", "zstd"),
}


async def _named(request: Request, gateway: Gateway) -> Values:
    topic = await gateway.client.describe_topic(request.path_params["topic"])
    return {"topic": topic, "now": gateway.client.now_ms()}


async def _topic(request: Request, gateway: Gateway) -> Values:
    values = await _named(request, gateway)
    first = await gateway.client.browse_page(values["topic"].name, page_size=ROWS)
    return {
        **values,
        "settings": values["topic"].settings.as_dict(),
        "groups": sorted({message.producer_group for message in first.messages}) or ["default"],
        "last": values["now"] + await _span_of(gateway, values["topic"].name, values["now"]),
    }


# How far ahead the timeline looks at first.
_HOUR_MS = 3_600_000
_SPANS_MS = tuple(
    round(hours * _HOUR_MS) for hours in (0.1, 0.25, 0.5, 1.25, 3, 6, 12, 24, 72, 168, 720, 2_160, 8_760, 87_600)
)


async def _span_of(gateway: Gateway, name: str, now: int) -> int:
    """The shortest span that has all messages of the future but a twentieth."""
    left_out = await gateway.client.count(name, start=now) // 20
    for span in _SPANS_MS:
        if await gateway.client.count(name, start=now + span) <= left_out:
            return span
    return _SPANS_MS[-1]


async def _messages(request: Request, gateway: Gateway) -> Values:
    values = await _named(request, gateway)
    given = {name: request.query_params.get(name) or None for name in _FILTERS}
    listed = request.query_params.getlist("header")
    query = PageQuery(
        start=given["start"],
        end=given["end"],
        status=given["status"],
        group=given["group"],
        consumer=given["consumer"],
        header=[text for text in listed if text],
    )
    found = await gateway.client.browse_page(
        values["topic"].name,
        page_size=ROWS,
        cursor=cursor_of(request.query_params.get("cursor")),
        **conditions_of(query, values["now"]),
    )
    cursor = opaque(found.cursor)
    kept = [(name, text) for name, text in request.query_params.multi_items() if text and name != "cursor"]
    return {
        **values,
        "messages": found.messages,
        "given": given,
        "header": next((text for text in listed if text), ""),
        "next": f"?{urlencode([*kept, ('cursor', cursor)])}" if cursor else None,
    }


_FILTERS = ("start", "end", "status", "group", "consumer")


async def _message(request: Request, gateway: Gateway) -> Values:
    name, message_id = request.path_params["topic"], request.path_params["id"]
    (message,) = await gateway.client.get(name, [message_id], fetch_large=False)
    life = await gateway.client.history(name, message_id, count=ROWS, seconds=HISTORY_SECONDS)
    return {
        "name": name,
        "id": message_id,
        "message": message,
        "body": shown_body(message.body) if message is not None and message.large is None else None,
        "life": life,
        "now": gateway.client.now_ms(),
        "body_path": f"/api/v1/topics/{name}/messages/{quote(message_id, safe='')}/body",
    }


async def _dead_letters(request: Request, gateway: Gateway) -> Values:
    values = await _named(request, gateway)
    name = values["topic"].name
    letters = gateway.client.dead_letters(name)
    place = await letters.where()
    try:
        found = await gateway.client.browse_page(
            place,
            page_size=ROWS,
            cursor=cursor_of(request.query_params.get("cursor")),
            headers={TOPIC: name},
        )
    except Missing:
        return {**values, "letters": (), "place": place, "count": 0, "next": None}
    cursor = opaque(found.cursor)
    return {
        **values,
        "letters": found.messages,
        "place": place,
        "count": await letters.count(),
        "next": f"?{urlencode({'cursor': cursor})}" if cursor else None,
    }


async def _schedules(request: Request, gateway: Gateway) -> Values:
    values = await _named(request, gateway)
    found = []
    if values["topic"].settings.kind is TopicKind.CRON:
        async for schedule in gateway.client.cron(values["topic"].name).all():
            found.append(schedule)
            if len(found) >= ROWS:
                break
    return {**values, "schedules": found, "is_cron": values["topic"].settings.kind is TopicKind.CRON}


async def _api(request: Request, gateway: Gateway) -> Values:
    return {"operations": operations()}
