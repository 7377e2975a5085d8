"""The page of a log topic: offsets, groups with their lag, and the last messages."""

from __future__ import annotations

from starlette.requests import Request

from dejaq.domain.topic import TopicKind
from dejaq.errors import DejaqError
from dejaq.sdk.log.messages import LogMessage
from dejaq.web.gateway import Gateway
from dejaq.web.pages.route import Values, named

TAIL_DEFAULT, TAIL_MAX = 25, 500


async def log_page(request: Request, gateway: Gateway) -> Values:
    """The offsets of each bucket, what each group has committed, and the tail of the log."""
    values = await named(request, gateway)
    topic = values["topic"]
    if topic.settings.kind is not TopicKind.LOG:
        return {**values, "is_log": False}
    text = request.query_params.get("tail", "")
    count = min(max(int(text), 1), TAIL_MAX) if text.isdecimal() and len(text) < 6 else TAIL_DEFAULT
    log = gateway.log(topic.name)
    buckets, groups = await log.offsets(), await log.groups()
    messages: list[LogMessage] = []
    unread = ""
    try:
        messages = (await log.tail(count))[::-1]
    except DejaqError as error:
        unread = error.message
    return {
        **values,
        "is_log": True,
        "buckets": buckets,
        "groups": groups,
        "messages": messages,
        "unread": unread,
        "tail": count,
        "total": sum(one.next - one.start for one in buckets),
        "bytes": sum(one.bytes for one in buckets),
    }
