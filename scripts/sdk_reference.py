"""Writes the reference of the SDK from its signatures and docstrings."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

import dejaq
import dejaq.sync
from dejaq.domain.backoff import Backoff

LINE_MAX = 100
GROUPS: dict[str, tuple[str, ...]] = {
    "Connecting": ("connect", "Client"),
    "Logs": (
        *("Log", "LogReader", "LogWorker", "LogGroup", "LogMessage", "LogBatch", "LogOffset", "AppendedBatch"),
        *("LogBucketInfo", "LogGroupInfo"),
    ),
    "Sending": ("Producer", "Results", "FanOut", "Reply", "Where", "BulkResult"),
    "Receiving": ("Consumer", "Lease", "Batch"),
    "Workers": ("Worker", "Postpone", "Reject", "Backoff", "Codec"),
    "Transactions": ("Transaction",),
    "Schedules": ("Cron", "Schedule", "ScheduleInfo"),
    "Dead letters": ("DeadLetters",),
    "Messages and topics": (
        "Message",
        "MessagePage",
        "Status",
        "TopicInfo",
        "TopicsPage",
        "AllTopics",
        "TopicEntry",
        "TopicCopies",
        "StoreCopies",
        "StandbyInfo",
        "TopicSettings",
        "TopicKind",
        "TopicStage",
        "Durability",
    ),
    "The life of a message": ("MessageHistory", "HistoryEvent"),
    "Rights": ("Rights", "RightsRule", "RightsDecision", "RightsQuota"),
    "The cluster": ("ClusterInfo", "BrokerInfo", "ClientInfo", "Pong"),
    "A broker in your program": ("Broker",),
}
# Classes that are described elsewhere, or values of a class that is described.
ELSEWHERE = frozenset({"Code", "JSON", "MSGPACK"})


def sdk_page() -> str:
    """Every public name of `dejaq`, grouped by purpose."""
    named = {name for names in GROUPS.values() for name in names}
    errors = [name for name in dejaq.__all__ if _is_error(name) and name not in named]
    missing = set(dejaq.__all__) - named - ELSEWHERE - set(errors)
    if missing:
        raise SystemExit(f"scripts/sdk_reference.py has no group for {', '.join(sorted(missing))}")
    parts = [
        "# SDK reference",
        "Every public name of the package `dejaq`. The [tutorial](tutorial.md) and the pages on [workers](workers.md), "
        "[consumers](consumers.md), [transactions](transactions.md) and [schedules](cron.md) show them in use.",
        "A time (`At`) is an aware `datetime` or UTC milliseconds. A duration (`Delay`) is a number of seconds or a "
        "`timedelta`. A method marked `async` is awaited; an `AsyncIterator` is read with `async for`.",
        "`dejaq.sync` has the same classes for programs without asyncio, with the same methods and arguments: "
        + ", ".join(f"`{name}`" for name in dejaq.sync.__all__)
        + ". Its methods wait for their results, and its iterators are plain ones.",
    ]
    for title, names in GROUPS.items():
        parts.append(f"## {title}")
        for name in names:
            parts.extend(_entry(name, getattr(dejaq, name)))
        if "Codec" in names:
            parts.append("The package has two codecs, `JSON` and `MSGPACK`: `dejaq.JSON.encode(value)`.")
    listed = ", ".join(f"`{name}`" for name in errors)
    parts += ["## Errors", f"{listed}. [Errors](errors.md) lists the codes of `dejaq.Code` with their classes."]
    return "\n\n".join(parts)


def _is_error(name: str) -> bool:
    value = getattr(dejaq, name)
    return isinstance(value, type) and issubclass(value, Exception)


def _entry(name: str, value: Any) -> Iterator[str]:
    yield f"### `{name}`"
    if not isinstance(value, type):
        yield _code(name, value)
        yield _doc(value)
        return
    yield _doc(value)
    if issubclass(value, enum.Enum):
        yield "Values: " + ", ".join(f"`{member.value}`" for member in value) + "."
        return
    if is_dataclass(value):
        yield "\n".join(["| field | type | default |", "|---|---|---|", *_fields(value)])
    elif value.__init__ is not object.__init__ and name in {"Broker", "Postpone", "Reject"}:
        yield _code(name, value.__init__)
    properties = [
        f"| `{key}` | `{_text(member.fget.__annotations__.get('return', ''))}` | {_cell(_doc(member))} |"
        for key, member in _members(value)
        if isinstance(member, property) and not key.startswith("_")
    ]
    if properties:
        yield "\n".join(["| property | type | meaning |", "|---|---|---|", *properties])
    for key, member in _members(value):
        function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if key.startswith("_") or not inspect.isfunction(function) or key in {"from_proto", "to_proto"}:
            continue
        yield f"#### `{name}.{key}`"
        yield _code(key, function)
        yield _doc(function)


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """The members of a class, then those of its base classes in the SDK."""
    for part in kind.__mro__:
        if part is kind or part.__module__.startswith("dejaq.sdk."):
            yield from vars(part).items()


def _fields(kind: Any) -> Iterator[str]:
    for one in fields(kind):
        if one.name.startswith("_"):
            continue
        default = ""
        if one.default is not MISSING:
            default = f"`{_default(one.default)}`"
        elif one.default_factory is not MISSING:
            default = f"`{_default(one.default_factory())}`"
        yield f"| `{one.name}` | `{_text(one.type)}` | {default} |"


def _code(name: str, function: Any) -> str:
    signature = inspect.signature(function)
    shown = [
        _parameter(parameter)
        for parameter in signature.parameters.values()
        if parameter.name not in {"self", "cls"} and not parameter.name.startswith("_")
    ]
    kinds = [parameter.kind for parameter in signature.parameters.values() if parameter.name not in {"self", "cls"}]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        shown.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    returns = "" if signature.return_annotation in {signature.empty, "None"} else f" -> {signature.return_annotation}"
    asynchronous = "async " if inspect.iscoroutinefunction(function) else ""
    line = f"{asynchronous}{name}({', '.join(shown)}){returns}"
    if len(line) > LINE_MAX:
        line = f"{asynchronous}{name}(\n" + "".join(f"    {one},\n" for one in shown) + f"){returns}"
    return f"```text\n{line}\n```"


def _parameter(parameter: inspect.Parameter) -> str:
    stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(parameter.kind.name, "")
    kind = "" if parameter.annotation is parameter.empty else f": {_text(parameter.annotation)}"
    default = "" if parameter.default is parameter.empty else f" = {_default(parameter.default)}"
    return f"{stars}{parameter.name}{kind}{default}"


def _default(value: Any) -> str:
    if isinstance(value, Backoff):
        return repr(str(value))
    return repr(value.value) if isinstance(value, enum.Enum) else repr(value)


def _text(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _doc(value: Any) -> str:
    text = inspect.getdoc(value)
    if not text:
        raise SystemExit(f"{value!r} has no docstring")
    return text
