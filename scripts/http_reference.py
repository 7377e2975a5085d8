"""Writes the reference of the HTTP API from the table that routes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dejaq.web.api.openapi import openapi
from dejaq.web.api.table import operations
from dejaq.web.problem import STATUSES

MARK = "<!-- Generated from src/dejaq/web/api by `make docs` from here on; edit the table there. -->"


def http_page(path: Path) -> str:
    """The hand-written guide, and every operation with its parameters."""
    head = path.read_text(encoding="utf-8").partition(MARK)[0].rstrip()
    described = openapi(operations())
    parts = [head, MARK, "## Operations"]
    tag = ""
    table = operations()
    tags = list(dict.fromkeys(one.tag for one in table))
    for one in sorted(table, key=lambda one: tags.index(one.tag)):
        if one.tag != tag:
            tag = one.tag
            parts.append(f"### {tag.capitalize()}")
        values = described["paths"][one.path][one.method.lower()]
        parts.append(f"#### `{one.method} {one.path}`")
        parts.append(f"{values['description']} Right: `{one.right}`.")
        parts += _details(values)
    parts.append("## Forms")
    for name, form in sorted(described["components"]["schemas"].items()):
        if form.get("properties") and not name.endswith(("Query", "Filter")):
            parts.append(f"### `{name}`")
            parts.append(str(form.get("description", "")).split("\n\n")[0].replace("\n", " "))
            rows = [
                f"| `{field}` | {_kind(schema)} | {'yes' if field in form.get('required', ()) else ''} |"
                for field, schema in form["properties"].items()
            ]
            parts.append("\n".join(["| field | type | always |", "|---|---|---|", *rows]))
    parts.append("## Statuses")
    parts.append("Every other code of a refused request has the status 400, and of a broker that cannot serve now 503.")
    statuses = [f"| `{code.name}` | {status} |" for code, status in STATUSES.items()]
    parts.append("\n".join(["| code | status |", "|---|---|", *statuses]))
    return "\n\n".join(part for part in parts if part)


def _details(values: dict[str, Any]) -> list[str]:
    parts: list[str] = []
    asked = [one for one in values["parameters"] if one["in"] != "path"]
    if asked:
        rows = [
            f"| `{one['name']}` | {one['in']} | {_kind(one['schema'])} | {one.get('description', '')} |"
            for one in asked
        ]
        parts.append("\n".join(["| parameter | in | type | |", "|---|---|---|---|", *rows]))
    body = values.get("requestBody", {}).get("content", {})
    if body:
        parts.append("Body: " + ", ".join(_content(kind, one) for kind, one in body.items()) + ".")
    answers = [
        f"{status}" + (" " + ", ".join(_content(kind, one) for kind, one in answer["content"].items()))
        if "content" in answer
        else status
        for status, answer in values["responses"].items()
        if status != "default"
    ]
    parts.append("Answer: " + "; ".join(answers) + ".")
    return parts


def _content(kind: str, value: dict[str, Any]) -> str:
    return f"{_kind(value['schema'])} as `{kind}`" if kind == "application/json" else f"`{kind}`"


def _kind(schema: dict[str, Any]) -> str:
    """A type in a few words."""
    if "$ref" in schema:
        return f"`{schema['$ref'].rpartition('/')[2]}`"
    if "anyOf" in schema:
        return " or ".join(_kind(one) for one in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items') or {})}"
    kind = str(schema.get("type", "any"))
    low, high = schema.get("minimum"), schema.get("maximum")
    return f"{kind} {low:,} to {high:,}" if low is not None and high is not None else kind
