"""Templates, the values that every page has, and pages for errors."""

from __future__ import annotations

import json
import os
import shlex
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from dejaq.errors import Code, DejaqError
from dejaq.protocol.version import package_version
from dejaq.web.api.times import iso_of
from dejaq.web.login.sessions import COOKIE
from dejaq.web.problem import status_of_error
from dejaq.web.settings import WebSettings

FOLDER = Path(__file__).resolve().parent.parent
NEXT = {
    Code.NO_BROKER: "Start a broker with dejaq serve, or give dejaq web another address with --url. This page tries "
    "again by itself.",
    Code.TOPIC_NOT_FOUND: "The topic may have been deleted. The list of topics shows those that exist.",
    Code.PERMISSION_DENIED: "Ask an administrator of the broker for the right.",
}


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1_000:
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1_000
    return f"{size:,.1f} TB"


def _duration(ms: int) -> str:
    """Milliseconds in the largest unit that leaves no rest."""
    for unit, length in (("days", 86_400_000), ("hours", 3_600_000), ("minutes", 60_000), ("seconds", 1_000)):
        if ms and ms % length == 0:
            return f"{ms // length:,} {unit if ms != length else unit[:-1]}"
    return f"{ms:,} ms"


def _shown_setting(name: str, value: object) -> str:
    """A setting as people read it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        if name.endswith("_ms"):
            return _duration(value)
        return _bytes(value) if name.endswith("_bytes") and value else f"{value:,}"
    return str(value) or "—"


def _literal(text: str) -> str:
    """Text within a template of a command that the page fills in: its braces and brackets stand for themselves."""
    return text.replace("{", "{{").replace("[", "[[")


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(os.fspath(FOLDER / "templates")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "iso": iso_of,
        "segment": lambda text: quote(text, safe="~/"),
        "number": "{:,}".format,
        "bytes": _bytes,
        "setting": lambda value, name: _shown_setting(name, value),
        "counted": _counted,
        # Values of a command and of a Python program that somebody will copy.
        "sh": lambda text: _literal(shlex.quote(text)),
        "py": lambda text: _literal(json.dumps(text)),
    }
    return environment


def page(request: Request, template: str, status: int = 200, **values: Any) -> Response:
    """Render one page."""
    settings: WebSettings = request.app.state.settings
    session = getattr(request.state, "session", None)
    html = (
        _environment()
        .get_template(template)
        .render(
            path=request.url.path,
            version=package_version(),
            url=settings.url,
            read_only=settings.read_only,
            has_lake=settings.lake is not None,
            caller=session.caller if session is not None else None,
            csrf=session.csrf if session is not None else "",
            **values,
        )
    )
    return Response(html, status_code=status, media_type="text/html")


def problem_page(request: Request, error: DejaqError) -> Response:
    """Say what happened, and what to do next; a caller whose session has ended signs in again."""
    if error.code is Code.UNAUTHENTICATED and getattr(request.state, "session", None) is not None:
        request.state.session.ended.set()
        there = quote(request.url.path, safe="")
        answer = RedirectResponse(f"/login?ended=1&next={there}", 303)
        answer.delete_cookie(COOKIE, path="/", secure=True, httponly=True, samesite="lax")
        return answer
    return page(
        request,
        "problem.html",
        status=status_of_error(error),
        code=error.code.name,
        message=str(error),
        step=NEXT.get(error.code, ""),
        again=error.retryable,
    )
