"""The pages: each is rendered on the server from what the brokers answer, with everything escaped."""

from __future__ import annotations

import json
from dataclasses import fields
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.routing import Route

from dejaq import limits
from dejaq.domain.dead_letter import REASON, TOPIC
from dejaq.domain.message import Message
from dejaq.domain.topic import TopicKind, TopicSettings
from dejaq.errors import Code, Missing, error_of
from dejaq.web.api.filters import PageQuery, conditions_of, cursor_of, opaque
from dejaq.web.api.table import operations
from dejaq.web.gateway import Gateway
from dejaq.web.pages.access import access_page
from dejaq.web.pages.bodies import PART_BYTES, ShownBody, shown_body
from dejaq.web.pages.cluster import clients_page, cluster_page
from dejaq.web.pages.lateness import lateness_page
from dejaq.web.pages.logs import log_page
from dejaq.web.pages.pipeline import pipeline_page
from dejaq.web.pages.route import ROWS, Values, named, page_route

TOPICS_MAX = 1_000
HISTORY_SECONDS = 1.0


def page_routes() -> list[Route]:
    """Every page and its address."""
    return [
        page_route("/", "overview.html", _overview),
        page_route("/topics", "topics.html", _topics),
        page_route("/topics/{topic:topic}", "topic.html", _topic),
        page_route("/topics/{topic:topic}/messages", "messages.html", _messages),
        page_route("/topics/{topic:topic}/messages/{id}", "message.html", _message),
        page_route("/topics/{topic:topic}/due", "due.html", named),
        page_route("/topics/{topic:topic}/produce", "produce.html", named),
        page_route("/topics/{topic:topic}/consume", "consume.html", named),
        page_route("/topics/{topic:topic}/dead-letters", "dead_letters.html", _dead_letters),
        page_route("/topics/{topic:topic}/schedules", "schedules.html", _schedules),
        page_route("/topics/{topic:topic}/log", "log.html", log_page),
        page_route("/topics/{topic:topic}/lateness", "lateness.html", lateness_page),
        page_route("/lateness", "lateness.html", lateness_page),
        page_route("/clients", "clients.html", clients_page),
        page_route("/cluster", "cluster.html", cluster_page),
        page_route("/pipeline", "pipeline.html", pipeline_page),
        page_route("/access", "access.html", access_page),
        page_route("/api", "api.html", _api),
    ]


async def _overview(request: Request, gateway: Gateway) -> Values:
    info = await gateway.client.info()
    rates = gateway.history.rates({topic.name for topic in info.topics})
    return {"info": info, "now": gateway.client.now_ms(), "rates": rates}


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


async def _topic(request: Request, gateway: Gateway) -> Values:
    values = await named(request, gateway)
    if values["topic"].settings.kind is TopicKind.LOG:
        # A log has no future; its page has the settings only.
        return {
            **values,
            "settings": values["topic"].settings.as_dict(),
            "groups": (),
            "last": values["now"],
            "rates": None,
        }
    first = await gateway.client.browse_page(values["topic"].name, page_size=ROWS)
    return {
        **values,
        "rates": gateway.history.rates([values["topic"].name]).get(values["topic"].name),
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
    values = await named(request, gateway)
    given = {name: request.query_params.get(name) or None for name in _FILTERS}
    listed = request.query_params.getlist("header")
    low, high = (_whole(given[name]) for name in ("priority_min", "priority_max"))
    query = PageQuery(
        priority_min=low,
        priority_max=high,
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


_FILTERS = ("start", "end", "status", "group", "consumer", "priority_min", "priority_max")


def _whole(text: str | None) -> int | None:
    """A priority in a filter; raises INVALID_PRIORITY."""
    if text is None:
        return None
    try:
        found = int(text[:20])
    except ValueError:
        found = limits.PRIORITY_MAX + 1
    if not limits.PRIORITY_MIN <= found <= limits.PRIORITY_MAX:
        raise error_of(Code.INVALID_PRIORITY, f"{text[:20]!r} is not a priority")
    return found


async def _message(request: Request, gateway: Gateway) -> Values:
    name, message_id = request.path_params["topic"], request.path_params["id"]
    (message,) = await gateway.client.get(name, [message_id], fetch_large=False)
    life = await gateway.client.history(name, message_id, count=ROWS, seconds=HISTORY_SECONDS)
    text = request.query_params.get("part", "")
    parts = 1 if message is None else max(1, -(-message.size // PART_BYTES))
    part = min(int(text), parts - 1) if text.isdecimal() and len(text) < 7 else 0
    return {
        "can": await gateway.rights.of(name),
        "kind": (await gateway.client.describe_topic(name)).settings.kind,
        "part": part,
        "parts": parts,
        "name": name,
        "id": message_id,
        "message": message,
        "body": await _body(gateway, message, part) if message is not None and not message.masked else None,
        "life": life,
        "now": gateway.client.now_ms(),
        "body_path": f"/api/v1/topics/{name}/messages/{quote(message_id, safe='')}/body",
    }


async def _body(gateway: Gateway, message: Message, part: int) -> ShownBody:
    """One part of a body. A large one is read up to that part, and never kept as a whole."""
    first, last = part * PART_BYTES, (part + 1) * PART_BYTES
    if message.large is None:
        return shown_body(message.body[first:last], first, whole=message.size <= PART_BYTES)
    seen, found = 0, b""
    async for piece in gateway.client.body_parts(message):
        found += piece[max(0, first - seen) : max(0, last - seen)]
        seen += len(piece)
        if seen >= last:
            break
    return shown_body(found, first, whole=False)


async def _dead_letters(request: Request, gateway: Gateway) -> Values:
    values = await named(request, gateway)
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
        return {**values, "letters": (), "reasons": (), "place": place, "count": 0, "next": None}
    cursor = opaque(found.cursor)
    return {
        **values,
        "letters": found.messages,
        "reasons": sorted({letter.headers.get(REASON, "") for letter in found.messages}),
        "place": place,
        "count": await letters.count(),
        "next": f"?{urlencode({'cursor': cursor})}" if cursor else None,
    }


async def _schedules(request: Request, gateway: Gateway) -> Values:
    values = await named(request, gateway)
    found = []
    if values["topic"].settings.kind is TopicKind.CRON:
        async for schedule in gateway.client.cron(values["topic"].name).all():
            found.append(schedule)
            if len(found) >= ROWS:
                break
    return {**values, "schedules": found, "is_cron": values["topic"].settings.kind is TopicKind.CRON}


async def _api(request: Request, gateway: Gateway) -> Values:
    return {"operations": operations()}
