"""Generate the reference pages of docs/ from the source; with --check, fail when one is stale."""

from __future__ import annotations

import ast
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import grpc_tools
from google.protobuf import descriptor_pb2 as descriptors
from grpc_tools import protoc

from dejaq import limits
from dejaq.broker.metrics import METRICS, REST, TOPIC_SERIES_MAX
from dejaq.cli.main import root
from dejaq.cli.terminal.failures import NEXT_STEPS
from dejaq.config import ENVIRONMENT_PREFIX, BrokerConfig
from dejaq.domain.topic import TopicSettings
from dejaq.errors import MEANINGS, Code, error_class
from http_reference import http_page
from sdk_reference import sdk_page

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PROTO = ROOT / "proto"
WIRE = (
    "dejaq/v1/overseer.proto",
    "dejaq/v1/carrier.proto",
    "dejaq/v1/history.proto",
    "dejaq/v1/cron.proto",
    "dejaq/v1/log.proto",
    "dejaq/v1/rights.proto",
    "dejaq/v1/access.proto",
    "dejaq/v1/errors.proto",
    "dejaq/v1/websocket.proto",
)
NOTICE = "<!-- Generated from the source by `make docs`; edit the source, not this page. -->"
MARK = "<!-- Generated from proto/ by `make docs` from here on; edit the .proto files. -->"

COLUMNS_MARK = "<!-- Generated from src/dejaq/pipeline/lake/tables.py by `make docs` from here on. -->"
COLUMN_TYPES = {
    "LONG": "long",
    "INT": "int",
    "TEXT": "string",
    "REAL": "double",
    "TRUTH": "boolean",
    "BinaryType()": "binary",
    "MapType(TEXT, TEXT)": "map of strings",
}
CODES_MARK = (
    "<!-- Generated from the source by `make docs` from here on; "
    "edit src/dejaq/errors.py and src/dejaq/cli/terminal/failures.py. -->"
)


def main() -> None:
    """Write the pages, or check them."""
    pages: dict[str, Callable[[], str]] = {
        "errors.md": errors_page,
        "metrics.md": metrics_page,
        "settings.md": settings_page,
        "cli.md": cli_page,
        "protocol.md": protocol_page,
        "sdk.md": lambda: f"{NOTICE}\n{sdk_page()}",
        "guarantees.md": guarantees_page,
        "troubleshooting.md": troubleshooting_page,
        "pipeline.md": pipeline_page,
        "http.md": lambda: http_page(DOCS / "http.md"),
    }
    stale = []
    for name, page in pages.items():
        path, text = DOCS / name, page().rstrip() + "\n"
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
    if "--check" in sys.argv and stale:
        raise SystemExit(f"stale: {', '.join(stale)}; run `make docs`")


def table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def errors_page() -> str:
    """Every code with its number, class and meaning."""
    rows = []
    for code in Code:
        kind = error_class(code)
        carried = "" if code.succeeded else f"`{kind.__name__}`"
        flags = [name for name in ("retryable", "indefinite", "should_resync") if getattr(kind, name)]
        rows.append(
            (
                f"`{code.name}`",
                str(int(code)),
                carried,
                "" if code.succeeded else ", ".join(flags),
                MEANINGS[code],
            )
        )
    return f"""{NOTICE}
# Errors

Every outcome has a stable code: the same name and number on the wire, in the SDK's exceptions and in what the
command prints. Decide by the code and by the flags, never by the text.

- *retryable*: the same request may succeed later.
- *indefinite*: it is unknown whether the request was done. Repeat it with the same ids; a repeat never makes
  a second message. The SDK does so by itself.
- *should_resync*: ask for the cluster's state again before the next request. The SDK does so by itself.

A refused item never stops the rest of its batch: outcomes are given item by item. The exceptions are in
`dejaq.errors`; all of them are `DejaqError`, and those that carry a refusal are `Refused`.

{table(("code", "number", "exception", "flags", "meaning"), rows)}
"""


def metrics_page() -> str:
    """Every metric with its kind, labels and meaning."""
    rows = [
        (
            f"`{metric.name}{'_total' if metric.kind == 'counter' else ''}`",
            metric.kind,
            ", ".join(f"`{label}`" for label in metric.labels),
            metric.help,
        )
        for metric in METRICS
    ]
    return f"""{NOTICE}
# Metrics

A broker serves these for Prometheus at `/metrics` of its port, such as `http://127.0.0.1:7400/metrics`.

At most {TOPIC_SERIES_MAX} topics have series of their own; all other topics are counted together, with
`topic="{REST}"`. The broker chooses every five seconds: a topic that is more than twice as busy as the quietest topic
with its own series takes its place. The new series begins at 0, and the old one is added to the rest, so no counter
ever decreases. Messages by status are sampled for topics with series of their own.

{table(("name", "kind", "labels", "meaning"), rows)}
"""


def settings_page() -> str:
    """Topic settings, the broker's configuration and the limits."""
    topic = [
        (f"`{known.name}`", f"`{shown(known.default)}`", str(known.metadata["doc"])) for known in fields(TopicSettings)
    ]
    broker = [
        (
            f"`{known.name}`",
            f"`{ENVIRONMENT_PREFIX}{known.name.upper()}`",
            f"`{shown(known.default)}`",
            str(known.metadata["doc"]),
        )
        for known in fields(BrokerConfig)
    ]
    bounds = [
        (f"`{name}`", f"{value:,}") for name, value in vars(limits).items() if name.isupper() and isinstance(value, int)
    ]
    return f"""{NOTICE}
# Settings and limits

## Topic settings

Chosen when a topic is created: `client.create_topic("mail", buckets=16)`, or
`dejaq topic create mail --buckets 16`. `max_future_ms`, `max_lease_ms` and `dedup_ms` are given as durations:
`max_lease="15m"` in the SDK, which also takes seconds or a `timedelta`, and `--max-lease 15m` at the command line.

{table(("setting", "default", "meaning"), topic)}

## The broker's configuration

An argument of `dejaq serve` wins over the environment, which wins over the TOML file given with `--config`.
In the file, write each key by its name at the top level, such as `listen = "127.0.0.1:7400"`.

{table(("key", "environment", "default", "meaning"), broker)}

## Limits

Beyond a limit there is a clear error for that item alone, or back-pressure; never a crash and never silent
loss. The unit is the end of the name.

{table(("limit", "value"), bounds)}
"""


def shown(value: Any) -> str:
    """A default as it is written in documentation."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) else str(value)


def cli_page() -> str:
    """Every command's help."""
    parts = []
    for path, command in commands(root, ()):
        context = click.Context(
            command, info_name=" ".join(("dejaq", *path)), terminal_width=100, max_content_width=100
        )
        parts.append(f"## `{' '.join(('dejaq', *path))}`\n\n```text\n{command.get_help(context)}\n```")
    return f"""{NOTICE}
# The command line

Every command takes `--json` (one JSON object per line on stdout, errors as JSON on stderr), `--url` and
`--debug`. The address comes from `--url`, else from `DEJAQ_URL`, else it is `dejaq://127.0.0.1:7400`.

Exit codes: 0 done; 1 refused or failed, for a batch when any item was; 2 wrong usage; 3 no broker answered;
4 the broker answered and cannot serve now; 5 the broker's store has failed or is damaged.

Times are ISO 8601 with a zone (`2030-01-31T09:00:00+01:00`), epoch milliseconds, or relative to now (`+90s`,
`5m`, `2h`, `1d`, `-5m`). Lengths of time are seconds (`2.5`) or have a unit (`250ms`, `5m`).

{(chr(10) * 2).join(parts)}
"""


def commands(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """A command and all its subcommands."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None:
                yield from commands(inner, (*path, name))


def protocol_page() -> str:
    """The hand-written beginning of the page, and after the mark the generated reference."""
    head = (DOCS / "protocol.md").read_text(encoding="utf-8").partition(MARK)[0].rstrip()
    parts = [head, MARK, "# Reference"]
    for file in wire_files():
        comments = {tuple(place.path): place.leading_comments.strip() for place in file.source_code_info.location}
        parts.append(f"## `{file.name}`")
        for index, service in enumerate(file.service):
            parts.append(service_part(service, (6, index), comments))
        for index, message in enumerate(file.message_type):
            parts.append(message_part(message, (4, index), comments))
        for index, enum in enumerate(file.enum_type):
            parts.append(enum_part(enum, (5, index), comments))
    return "\n\n".join(part for part in parts if part)


def guarantees_page() -> str:
    """The hand-written page, with the tests that prove each guarantee."""
    proofs = proofs_by_guarantee()

    def filled(match: re.Match[str]) -> str:
        tests = "\n".join(f"- `{test}`" for test in proofs.get(match[1], ()))
        return f"<!-- proofs {match[1]} -->\n\n**Tests.**\n\n{tests}\n\n<!-- end -->"

    page = (DOCS / "guarantees.md").read_text(encoding="utf-8")
    return re.sub(r"<!-- proofs (G\d+) -->.*?<!-- end -->", filled, page, flags=re.DOTALL)


def proofs_by_guarantee() -> dict[str, list[str]]:
    """Every test whose docstring names a guarantee, as pytest writes its name."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                for name in sorted(set(re.findall(r"\bG[1-9]\d*\b", ast.get_docstring(node) or ""))):
                    found.setdefault(name, []).append(f"{path.relative_to(ROOT).as_posix()}::{node.name}")
    return found


def troubleshooting_page() -> str:
    """The hand-written symptoms, and every error code with its cause and its fix."""
    head = (DOCS / "troubleshooting.md").read_text(encoding="utf-8").partition(CODES_MARK)[0].rstrip()
    rows = [(f"`{code.name}`", MEANINGS[code], sentence(NEXT_STEPS[code])) for code in Code if not code.succeeded]
    return f"{head}\n\n{CODES_MARK}\n\n## By error code\n\n{table(('code', 'cause', 'fix'), rows)}"


def pipeline_page() -> str:
    """The hand-written page, and the columns of the lake's tables with the comments of the source."""
    head = (DOCS / "pipeline.md").read_text(encoding="utf-8").partition(COLUMNS_MARK)[0].rstrip()
    source = (ROOT / "src" / "dejaq" / "pipeline" / "lake" / "tables.py").read_text(encoding="utf-8")
    parts = [head, COLUMNS_MARK, "## Columns"]
    for name, columns in re.findall(r"^([A-Z_]+) = _schema\(\n(.*?)^\)", source, flags=re.DOTALL | re.MULTILINE):
        rows: list[tuple[str, ...]] = []
        meaning: list[str] = []
        for line in columns.splitlines():
            text = line.strip()
            if text.startswith("#"):
                meaning.append(text.removeprefix("#").strip())
                continue
            column, _, kind = text.rstrip(",").partition("=")
            rows.append((f"`{column}`", COLUMN_TYPES[kind], " ".join(meaning)))
            meaning = []
        parts += [f"### `{name.lower()}`", table(("column", "type", "meaning"), rows)]
    return "\n\n".join(parts)


def sentence(step: str) -> str:
    """A next step of the command line as a sentence."""
    return f"{step[0].upper()}{step[1:]}."


Comments = dict[tuple[int, ...], str]


def wire_files() -> list[descriptors.FileDescriptorProto]:
    """The protocol's files with their comments."""
    include = str(Path(grpc_tools.__file__).parent / "_proto")
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "descriptors"
        code = protoc.main(
            [
                "protoc",
                f"-I{PROTO}",
                f"-I{include}",
                "--include_source_info",
                f"--descriptor_set_out={target}",
                *WIRE,
            ]
        )
        if code:
            raise SystemExit("protoc failed")
        found = descriptors.FileDescriptorSet.FromString(target.read_bytes())
    by_name = {file.name: file for file in found.file}
    return [by_name[name] for name in WIRE]


def one_line(text: str) -> str:
    """A comment as one paragraph."""
    return " ".join(text.split())


def service_part(service: descriptors.ServiceDescriptorProto, path: tuple[int, ...], comments: Comments) -> str:
    """A service and its calls."""
    rows = []
    for index, method in enumerate(service.method):
        request = ("stream " if method.client_streaming else "") + short(method.input_type)
        response = ("stream " if method.server_streaming else "") + short(method.output_type)
        rows.append(
            (
                f"`{method.name}`",
                f"`{request}`",
                f"`{response}`",
                one_line(comments.get((*path, 2, index), "")),
            )
        )
    text = one_line(comments.get(path, ""))
    return f"### Service {service.name}\n\n{text}\n\n{table(('call', 'request', 'response', 'notes'), rows)}"


def message_part(message: descriptors.DescriptorProto, path: tuple[int, ...], comments: Comments) -> str:
    """A message and its fields."""
    text = one_line(comments.get(path, ""))
    rows = [
        (
            f"`{part.name}`",
            str(part.number),
            f"`{type_of(part, message)}`",
            one_line(comments.get((*path, 2, index), "")),
        )
        for index, part in enumerate(message.field)
    ]
    fields_table = table(("field", "number", "type", "notes"), rows) if rows else "No fields."
    return "\n\n".join(part for part in (f"### {message.name}", text, fields_table) if part)


def enum_part(enum: descriptors.EnumDescriptorProto, path: tuple[int, ...], comments: Comments) -> str:
    """An enumeration and its values."""
    if enum.name == "Code":
        return f"### {enum.name}\n\n{one_line(comments.get(path, ''))} Listed in [errors](errors.md)."
    rows = [
        (f"`{value.name}`", str(value.number), one_line(comments.get((*path, 2, index), "")))
        for index, value in enumerate(enum.value)
    ]
    text = one_line(comments.get(path, ""))
    parts = (f"### {enum.name}", text, table(("value", "number", "notes"), rows))
    return "\n\n".join(part for part in parts if part)


def type_of(part: descriptors.FieldDescriptorProto, message: descriptors.DescriptorProto) -> str:
    """A field's type as the .proto file writes it."""
    kind = descriptors.FieldDescriptorProto
    for nested in message.nested_type:
        if nested.options.map_entry and part.type_name.endswith(f".{message.name}.{nested.name}"):
            key, value = (type_of(inner, nested) for inner in nested.field)
            return f"map<{key}, {value}>"
    name = short(part.type_name) if part.type_name else kind.Type.Name(part.type).removeprefix("TYPE_").lower()
    if part.label == kind.LABEL_REPEATED:
        return f"repeated {name}"
    if part.HasField("oneof_index") and not part.proto3_optional:
        return f"{name} (one of {message.oneof_decl[part.oneof_index].name})"
    return f"optional {name}" if part.proto3_optional else name


def short(name: str) -> str:
    """A type's name without its package."""
    return name.removeprefix(".dejaq.v1.")


if __name__ == "__main__":
    main()
