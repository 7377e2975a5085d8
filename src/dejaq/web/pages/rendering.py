"""Templates, the values that every page has, and pages for errors."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
from starlette.requests import Request
from starlette.responses import Response

from dejaq.errors import Code, DejaqError
from dejaq.protocol.version import package_version
from dejaq.web.api.times import iso_of
from dejaq.web.gateway import Gateway
from dejaq.web.problem import status_of_error

FOLDER = Path(__file__).resolve().parent.parent
NEXT = {
    Code.NO_BROKER: "Start a broker with dejaq serve, or give dejaq web another address with --url. This page tries "
    "again by itself.",
    Code.TOPIC_NOT_FOUND: "The topic may have been deleted. The list of topics shows those that exist.",
    Code.PERMISSION_DENIED: "Ask an administrator of the broker for the right.",
}


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(os.fspath(FOLDER / "templates")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"iso": iso_of, "segment": lambda text: quote(text, safe="~/"), "number": "{:,}".format}
    return environment


def page(request: Request, gateway: Gateway, template: str, status: int = 200, **values: Any) -> Response:
    """Render one page."""
    html = (
        _environment()
        .get_template(template)
        .render(
            path=request.url.path,
            version=package_version(),
            url=gateway.settings.url,
            read_only=gateway.settings.read_only,
            **values,
        )
    )
    return Response(html, status_code=status, media_type="text/html")


def problem_page(request: Request, gateway: Gateway, error: DejaqError) -> Response:
    """Say what happened, and what to do next."""
    return page(
        request,
        gateway,
        "problem.html",
        status=status_of_error(error),
        code=error.code.name,
        message=str(error),
        step=NEXT.get(error.code, ""),
        again=error.retryable,
    )
