"""The page of lateness: a heat map and percentiles over time, of one topic or of all."""

from __future__ import annotations

from dataclasses import asdict

from starlette.requests import Request

from dejaq.web.gateway import Gateway
from dejaq.web.live.views import lateness_of
from dejaq.web.pages.route import Values, named


async def lateness_page(request: Request, gateway: Gateway) -> Values:
    """The values of the first drawing; the page then gets live ones."""
    name = request.path_params.get("topic", "")
    fine = request.query_params.get("steps") != "minutes"
    values = await named(request, gateway) if name else {"topic": None, "now": gateway.client.now_ms()}
    found = await lateness_of(gateway.client, gateway.history, name, fine=fine)
    return {**values, "fine": fine, **found, "lateness": asdict(found["lateness"])}
