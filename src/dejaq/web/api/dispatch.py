"""From a request to its operation, and from the answer or the error to a response."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from dejaq.errors import Code, DejaqError, InternalError, error_of
from dejaq.web.api.openapi import openapi
from dejaq.web.api.operation import BODY_BYTES_MAX, JSON, NDJSON, ApiAnswer, ApiCall, ApiOperation, ApiRight
from dejaq.web.api.table import BASE
from dejaq.web.gateway import Gateway
from dejaq.web.problem import problem_response, refused

log = logging.getLogger("dejaq.web")

_encoder = msgspec.json.Encoder()


class TopicConvertor(Convertor[str]):
    """A topic in an address: `mail`, or a user's own `~alice/mail`."""

    regex = r"(?:~[^/]*/)?[^/:]+"

    def convert(self, value: str) -> str:
        """The name of the topic."""
        return value

    def to_string(self, value: str) -> str:
        """The part of the address."""
        return value


register_url_convertor("topic", TopicConvertor())


def api_routes(operations: Sequence[ApiOperation]) -> list[Route]:
    """One route per address, for all its methods, and the description of the API."""
    by_path: dict[str, dict[str, ApiOperation]] = {}
    for one in operations:
        by_path.setdefault(one.path, {})[one.method] = one
    described = msgspec.json.encode(openapi(operations))

    async def description(request: Request) -> Response:
        return Response(described, media_type=JSON)

    # An address with more literal parts comes first, so that `messages:move` is not an id.
    ordered = sorted(by_path, key=lambda path: (path.count("{"), -len(path)))
    return [
        Route(f"{BASE}/openapi.json", description, methods=["GET"]),
        *(Route(_pattern(path), _endpoint(by_path[path]), methods=list(by_path[path])) for path in ordered),
    ]


def _pattern(path: str) -> str:
    return re.sub(r"\{topic\}", "{topic:topic}", path)


def _endpoint(by_method: dict[str, ApiOperation]) -> Any:
    async def endpoint(request: Request) -> Response:
        return await answer(by_method["GET" if request.method == "HEAD" else request.method], request)

    return endpoint


async def answer(operation: ApiOperation, request: Request) -> Response:
    """Run one operation; every error becomes a problem."""
    gateway: Gateway = request.state.gateway
    try:
        if gateway.settings.read_only and operation.right is not ApiRight.READ:
            raise error_of(Code.PERMISSION_DENIED, "this gateway is read-only (dejaq web --read-only)")
        query = _query(operation, request)
        body = await _body(operation, request)
        call = ApiCall(gateway, request, query, request.path_params, body)
        return _response(await operation.handle(call))
    except _UnsupportedKind:
        kinds = ", ".join(operation.body_kinds)
        return refused(415, Code.INVALID_ARGUMENT, f"the request's body must be one of {kinds}")
    except DejaqError as error:
        return problem_response(error)
    except ClientDisconnect:
        return Response(status_code=499)
    except Exception:
        number = secrets.token_hex(6)
        log.exception("%s failed (request %s)", operation.name, number)
        return problem_response(InternalError(details=f"request {number}; the log of the gateway has the details"))


class _UnsupportedKind(Exception):
    """The request's body has a kind that the operation does not take."""


def _query(operation: ApiOperation, request: Request) -> msgspec.Struct:
    listed = {one.name for one in msgspec.structs.fields(operation.query) if str(one.type).startswith("list")}
    given = request.query_params
    values = {name: given.getlist(name) if name in listed else given[name] for name in given}
    for name, value in values.items():
        if isinstance(value, str) and len(given.getlist(name)) > 1:
            raise error_of(Code.INVALID_ARGUMENT, f"the query parameter {name[:40]!r} is given more than once")
    try:
        return msgspec.convert(values, operation.query, strict=False)
    except msgspec.ValidationError as wrong:
        raise error_of(Code.INVALID_ARGUMENT, f"the query parameters are not as described: {wrong}") from None


async def _body(operation: ApiOperation, request: Request) -> bytes:
    if operation.method in ("GET", "DELETE"):
        return b""
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > BODY_BYTES_MAX:
        raise error_of(Code.BODY_TOO_LARGE, f"a request has at most {BODY_BYTES_MAX} bytes")
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > BODY_BYTES_MAX:
            raise error_of(Code.BODY_TOO_LARGE, f"a request has at most {BODY_BYTES_MAX} bytes")
        chunks.append(chunk)
    body = b"".join(chunks)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    takes_any = any(kind not in (JSON, NDJSON) for kind in operation.body_kinds)
    if body and kind not in operation.body_kinds and not takes_any:
        raise _UnsupportedKind
    return body


def _response(answer: ApiAnswer) -> Response:
    headers = dict(answer.headers)
    if answer.lines is not None:
        return StreamingResponse(answer.lines, media_type=NDJSON, headers=headers)
    if answer.content is not None:
        response = Response(answer.content, status_code=answer.status, headers=headers)
        # Without the charset that Starlette adds to text: the bytes are what the producer sent.
        response.headers["content-type"] = answer.kind
        return response
    if answer.status == 204:
        return Response(status_code=204, headers=headers)
    return Response(_encoder.encode(answer.value), status_code=answer.status, media_type=answer.kind, headers=headers)
