"""Many messages by their ids, in one request: read, change, cancel; each has an outcome of its own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dejaq import limits
from dejaq.domain.ids import valid_id
from dejaq.errors import MEANINGS, Code, error_of
from dejaq.web.api.operation import ApiAnswer, ApiCall
from dejaq.web.api.operations.messages import OwnerQuery
from dejaq.web.api.operations.sending import SentBatch
from dejaq.web.api.times import times_of
from dejaq.web.api.values import (
    ItemOutcome,
    MessageChange,
    MessageValue,
    decoded_body,
    message_value,
)

_COUNT = Meta(min_length=1, max_length=limits.BATCH_COUNT_MAX)
_Version = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class IdList(msgspec.Struct, forbid_unknown_fields=True):
    """The ids of messages."""

    ids: Annotated[list[str], _COUNT]


class FoundMessages(msgspec.Struct):
    """The messages in the order of their ids; null for an id that has no message now."""

    messages: list[MessageValue | None]


class ChangeById(MessageChange, forbid_unknown_fields=True, kw_only=True):
    """What changes of one message; with `version` only if it still has this version."""

    id: str
    version: _Version | None = None


class CancelById(msgspec.Struct, forbid_unknown_fields=True):
    """A message to cancel; with `version` only if it still has this version."""

    id: str
    version: _Version | None = None


async def get_messages(call: ApiCall) -> ApiAnswer:
    """Several messages by their ids. Large bodies are only read by `/body`."""
    ids = call.json(IdList).ids
    for message_id in ids:
        _check(message_id)
    now = call.client.now_ms()
    found = await call.client.get(call.topic, ids, fetch_large=False)
    return ApiAnswer(FoundMessages([None if one is None else message_value(one, now) for one in found]))


async def edit_messages_by_id(call: ApiCall) -> ApiAnswer:
    """Change several messages of one owner, each by itself; the answer has an outcome for each. `207` when some were
    refused.
    """
    changes: list[ChangeById] = call.json(Annotated[list[ChangeById], _COUNT])  # type: ignore[arg-type]
    query: OwnerQuery = call.query
    now = call.client.now_ms()
    for change in changes:
        _check(change.id)
    rows = [_arguments(change, now) for change in changes]
    outcomes: list[ItemOutcome] = []
    async with call.gateway.producer(call.topic, query.group) as producer:
        # A column belongs to all rows of a call, so rows that change the same fields share one.
        for names, chosen in groupby(rows, key=tuple[str, ...]):
            part = list(chosen)
            columns = {_COLUMNS[name]: [row[name] for row in part] for name in names if name != "id"}
            if not columns.keys() - {"versions"}:
                raise error_of(Code.INVALID_ARGUMENT, f"nothing changes of {part[0]['id']}")
            ids = [row["id"] for row in part]
            results = await producer.edit_batch(ids, **columns, results=True)
            outcomes.extend(_outcomes(ids, results.codes))
    return _answer(outcomes)


async def cancel_messages_by_id(call: ApiCall) -> ApiAnswer:
    """Cancel several messages of one owner, each by itself; the answer has an outcome for each. `207` when some were
    refused.
    """
    cancelled: list[CancelById] = call.json(Annotated[list[CancelById], _COUNT])  # type: ignore[arg-type]
    query: OwnerQuery = call.query
    for one in cancelled:
        _check(one.id)
    outcomes: list[ItemOutcome] = []
    async with call.gateway.producer(call.topic, query.group) as producer:
        for conditional, part in groupby(cancelled, key=lambda one: one.version is not None):
            rows = list(part)
            ids = [one.id for one in rows]
            versions = [one.version or 0 for one in rows] if conditional else None
            results = await producer.cancel(ids, versions=versions, results=True)
            outcomes.extend(_outcomes(ids, results.codes))
    return _answer(outcomes)


_COLUMNS = {
    "body": "bodies",
    "at": "at",
    "delay": "delay",
    "priority": "priorities",
    "headers": "headers",
    "version": "versions",
}


def _arguments(change: ChangeById, now_ms: int) -> dict[str, Any]:
    """The fields that change, in one order."""
    fields = {
        "id": change.id,
        "body": decoded_body(change.body, change.body_base64),
        **times_of(change.at, change.delay, now_ms),
        "priority": change.priority,
        "headers": change.headers,
        "version": change.version,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _check(message_id: str) -> None:
    if not valid_id(message_id):
        raise error_of(Code.INVALID_ID, details=message_id[:80])


def _outcomes(ids: Sequence[str], codes: Sequence[Code]) -> list[ItemOutcome]:
    return [
        ItemOutcome(message_id, code.name, code.succeeded, "" if code is Code.OK else MEANINGS[code])
        for message_id, code in zip(ids, codes, strict=True)
    ]


def _answer(outcomes: list[ItemOutcome]) -> ApiAnswer:
    return ApiAnswer(SentBatch(outcomes), status=200 if all(one.ok for one in outcomes) else 207)
