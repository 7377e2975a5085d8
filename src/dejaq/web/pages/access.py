"""The page of sessions, keys and rights."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Mapping, Sequence
from typing import TypeVar
from urllib.parse import urlencode

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
        "shown": _shown_as(given, str(request.base_url).rstrip("/")),
        "decision": decision,
        "problem": problem,
        "now": gateway.client.now_ms(),
    }


def _shown_as(given: Mapping[str, str], address: str) -> dict[str, str]:
    """The explained decision as a command, Python and curl."""
    principals = [name.strip() for name in given["who"].split(",") if name.strip()]
    words = ["dejaq", "rights", "check", given["operation"], given["topic"]]
    words += ["--group", given["group"]] if given["group"] else []
    for name in principals:
        words += ["--as", name]
    more = (f", group={given['group']!r}" if given["group"] else "") + (
        f", principals={principals}" if principals else ""
    )
    asked = [("operation", given["operation"]), ("topic", given["topic"]), ("group", given["group"])]
    query = urlencode([*asked, *(("principal", name) for name in principals)])
    return {
        "cli": shlex.join(words),
        "python": f"await client.rights().check({given['operation']!r}, {given['topic']!r}{more})",
        "curl": f"curl {shlex.quote(f'{address}/api/v1/rights:check?{query}')}",
    }


async def _shown(rows: Awaitable[Sequence[Row]]) -> tuple[Sequence[Row], str]:
    """The rows, or why the caller may not see them."""
    try:
        return await rows, ""
    except DejaqError as error:
        return (), error.message
