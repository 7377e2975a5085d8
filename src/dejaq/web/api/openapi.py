"""The OpenAPI 3.1 description of the table, and the plain page beside it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from dejaq.protocol.version import package_version
from dejaq.web.api.operation import JSON, ApiOperation

_PLACE = re.compile(r"\{(\w+)\}")
_REF = "#/components/schemas/{name}"
_PLACES = {
    "topic": "The name of a topic, such as `mail` or `~alice/mail`.",
    "id": "The id of a message.",
    "lease": "A lease id, as `takeLeases` answered it.",
    "name": "The name of a schedule, or of a prepared transaction.",
    "group": "The name of a group that reads a log.",
    "session": "The id of a session, as `listSessions` answered it.",
    "key": "The id of an API key: the 12 characters after `dq_`.",
    "rule": "The id of a rule.",
}
PROBLEM = {
    "type": "object",
    "description": "An error, as RFC 9457 describes; docs/errors.md lists the codes.",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string"},
        "retryable": {"type": "boolean"},
        "indefinite": {"type": "boolean"},
        "throttled_ms": {"type": "integer"},
        "failed": {"type": "object", "additionalProperties": {"type": "string"}},
    },
    "required": ["type", "title", "status", "detail", "code", "retryable", "indefinite"],
}


def openapi(operations: Sequence[ApiOperation]) -> dict[str, Any]:
    """The description, as plain values."""
    types = [kind for one in operations for kind in (one.body, one.answer, one.query) if kind is not None]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    known = dict(zip(map(id, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for one in operations:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one, known, components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "DejaQ",
            "version": package_version(),
            "description": "The HTTP API of `dejaq web`: a scheduled-message queue.",
        },
        "paths": paths,
        "components": {"schemas": {**components, "Problem": PROBLEM}},
    }


def _operation(one: ApiOperation, known: dict[int, Any], components: dict[str, Any]) -> dict[str, Any]:
    answers: dict[str, Any] = {str(one.status): _answer(one, known)}
    if one.status == 201:
        answers["200"] = {**_answer(one, known), "description": "It was there already."}
    if one.partly:
        answers["207"] = {**_answer(one, known), "description": "Some were refused."}
    problem = {"application/problem+json": {"schema": {"$ref": _REF.format(name="Problem")}}}
    answers["default"] = {"description": "An error.", "content": problem}
    described: dict[str, Any] = {
        "operationId": one.name,
        "summary": one.summary,
        "description": " ".join((one.handle.__doc__ or "").split()),
        "tags": [one.tag],
        "x-right": one.right.value,
        "parameters": [
            *(
                {
                    "name": name,
                    "in": "path",
                    "required": True,
                    "schema": {"type": "string"},
                    "description": _PLACES[name],
                }
                for name in _PLACE.findall(one.path)
            ),
            *_query(one, known, components),
            *(
                {"name": name, "in": "header", "schema": {"type": "string"}, "description": text}
                for name, text in one.headers.items()
            ),
        ],
        "responses": answers,
    }
    if one.body is not None:
        described["requestBody"] = {
            "required": True,
            "content": {
                kind: {"schema": known[id(one.body)] if kind == JSON else {"type": "string", "format": "binary"}}
                for kind in one.body_kinds
            },
        }
    return described


def _answer(one: ApiOperation, known: dict[int, Any]) -> dict[str, Any]:
    if one.status == 204:
        return {"description": "Done."}
    content = {
        kind: {"schema": known[id(one.answer)] if kind == JSON else {"type": "string", "format": "binary"}}
        for kind in one.answer_kinds
    }
    return {"description": "The answer.", "content": content}


def _query(one: ApiOperation, known: dict[int, Any], components: dict[str, Any]) -> list[dict[str, Any]]:
    name = known[id(one.query)]["$ref"].rpartition("/")[2]
    form = components[name]
    return [
        {"name": field, "in": "query", "required": field in form.get("required", ()), "schema": _plain(schema)}
        for field, schema in form.get("properties", {}).items()
    ]


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """A query parameter is absent, never null."""
    choices = [choice for choice in schema.get("anyOf", ()) if choice.get("type") != "null"]
    if len(choices) == 1:
        return {**choices[0]}
    return schema
