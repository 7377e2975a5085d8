"""Operations of the HTTP API that a program calls over its socket."""

from __future__ import annotations

import asyncio
import base64
from functools import cache
from typing import Any
from urllib.parse import urlencode

import msgspec
from starlette.requests import Request

from dejaq.errors import Code, error_of
from dejaq.web.api.dispatch import answer
from dejaq.web.api.operation import JSON, ApiOperation, HeldLeases
from dejaq.web.api.table import operations
from dejaq.web.gateway import Gateway
from dejaq.web.programs.frames import Answer, OperationCall

_HEADERS = ("if-match", "idempotency-key", "accept")


@cache
def _by_name() -> dict[str, ApiOperation]:
    return {one.name: one for one in operations()}


async def run_operation(gateway: Gateway, leases: HeldLeases, call: OperationCall) -> Answer:
    """Run one operation with the rights of the program; raises NOT_FOUND for a name that is none."""
    operation = _by_name().get(call.operation)
    if operation is None:
        raise error_of(Code.NOT_FOUND, f"the API has no operation {call.operation!r}")
    response = await answer(operation, _request(operation, gateway, leases, call))
    content = bytes(response.body)
    kind = response.headers.get("content-type", "")
    if response.status_code >= 400:
        return Answer(call.n, status=response.status_code, error=msgspec.json.decode(content))
    if not content:
        return Answer(call.n, status=response.status_code)
    if not kind.startswith(JSON):
        content = msgspec.json.encode({"body_base64": base64.b64encode(content).decode()})
    return Answer(call.n, status=response.status_code, value=msgspec.Raw(content))


def _request(operation: ApiOperation, gateway: Gateway, leases: HeldLeases, call: OperationCall) -> Request:
    body = bytes(call.body)
    chosen = {name.lower(): text for name, text in call.headers.items()}
    headers = [(name.encode(), chosen[name].encode()) for name in _HEADERS if name in chosen]
    missing = [name for name in ("topic", "id", "lease", "name") if f"{{{name}}}" in operation.path]
    if not set(missing) <= call.path.keys():
        raise error_of(Code.INVALID_ARGUMENT, f"{operation.name} needs {', '.join(missing)} in path")
    scope: dict[str, Any] = {
        "type": "http",
        "method": operation.method,
        "path": operation.path,
        "path_params": call.path,
        "query_string": urlencode({name: _text(value) for name, value in call.query.items()}, doseq=True).encode(),
        "headers": [*headers, (b"content-type", JSON.encode())],
        "state": {"gateway": gateway, "leases": leases},
    }
    parts = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        # The program is there until this task is cancelled.
        if not parts:
            await asyncio.Event().wait()
        return parts.pop()

    return Request(scope, receive)


def _text(value: str | float | bool | list[str]) -> str | list[str]:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, list) else str(value)
