"""The page of sessions, keys and rights."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TypeVar

from starlette.requests import Request

from dejaq.errors import DejaqError
from dejaq.sdk.admin.access import AccessCalls
from dejaq.security.rights.operations import MEANINGS
from dejaq.web.gateway import Gateway
from dejaq.web.pages.route import Values
from dejaq.web.rights import CLUSTER

Row = TypeVar("Row")


async def access_page(request: Request, gateway: Gateway) -> Values:
    """The caller, the sessions and keys that it may end, the rules that it may see, and an explained decision."""
    calls, rights = AccessCalls(gateway.client), gateway.client.rights()
    given = {name: request.query_params.get(name, "")[:200].strip() for name in ("operation", "topic", "group", "who")}
    decision = problem = None
    if given["operation"] and given["topic"]:
        try:
            principals = [name.strip() for name in given["who"].split(",") if name.strip()]
            decision = await rights.check(
                given["operation"], given["topic"], group=given["group"], principals=principals
            )
        except DejaqError as error:
            problem = error.message
    return {
        "me": await calls.who_am_i(),
        "sessions": await _shown(calls.sessions()),
        "keys": await _shown(calls.keys()),
        "rules": await _shown(rights.list()),
        "quotas": await _shown(rights.quotas()),
        "can": await gateway.rights.of(CLUSTER),
        "operations": {str(one): text for one, text in MEANINGS.items()},
        "given": given,
        "decision": decision,
        "problem": problem,
        "now": gateway.client.now_ms(),
    }


async def _shown(rows: Awaitable[Sequence[Row]]) -> tuple[Sequence[Row], str]:
    """The rows, or why the caller may not see them."""
    try:
        return await rows, ""
    except DejaqError as error:
        return (), error.message
