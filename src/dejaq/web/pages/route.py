"""What pages have in common: their routes, their errors, and the values of a topic's pages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dejaq.errors import DejaqError
from dejaq.web.gateway import Gateway
from dejaq.web.pages.rendering import page, problem_page

# What one page lists at most.
ROWS = 100
Values = dict[str, Any]
Shown = Callable[[Request, Gateway], Awaitable[Values]]


def page_route(path: str, template: str, shown: Shown) -> Route:
    """The route of a page with the values of a template."""

    async def endpoint(request: Request) -> Response:
        gateway: Gateway = request.state.gateway
        try:
            values = await shown(request, gateway)
        except DejaqError as error:
            return problem_page(request, error)
        return page(request, template, **values)

    return Route(path, endpoint, methods=["GET"])


async def named(request: Request, gateway: Gateway) -> Values:
    """The topic in the address, what the caller may do with it, and the broker's clock."""
    topic = await gateway.client.describe_topic(request.path_params["topic"])
    return {"topic": topic, "now": gateway.client.now_ms(), "can": await gateway.rights.of(topic.name)}
