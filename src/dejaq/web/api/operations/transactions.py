"""Changes that are made together or not at all, and one message to several topics."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from dejaq import limits
from dejaq.sdk.changing.transaction import Transaction
from dejaq.web.api.idempotency import id_of_key
from dejaq.web.api.operation import ApiAnswer, ApiCall
from dejaq.web.api.times import times_of
from dejaq.web.api.values import Epoch, Group, MessageChange, NewMessage, Seconds, decoded_body

STEPS_MAX = limits.BATCH_COUNT_MAX
TOPICS_MAX = 1_000
_Topic = Annotated[str, Meta(min_length=1, max_length=200)]
_Lease = Annotated[str, Meta(max_length=64)]


class TransactionQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The owner of the messages; a step may name another one."""

    group: Group = "default"


class SendStep(NewMessage, forbid_unknown_fields=True, tag="send", tag_field="do", kw_only=True):
    """Create a message."""

    topic: _Topic
    group: Group | None = None


class EditStep(MessageChange, forbid_unknown_fields=True, tag="edit", tag_field="do", kw_only=True):
    """Change a message; with `version` only if it still has this version."""

    topic: _Topic
    id: str
    version: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    group: Group | None = None


class MoveStep(msgspec.Struct, forbid_unknown_fields=True, tag="move", tag_field="do", kw_only=True):
    """Give a message another time."""

    topic: _Topic
    id: str
    at: str | Epoch | None = None
    delay: Seconds | None = None
    group: Group | None = None


class CancelStep(msgspec.Struct, forbid_unknown_fields=True, tag="cancel", tag_field="do", kw_only=True):
    """Remove a message."""

    topic: _Topic
    id: str
    group: Group | None = None


class AppendStep(msgspec.Struct, forbid_unknown_fields=True, tag="append", tag_field="do", kw_only=True):
    """Append a message to a log."""

    topic: _Topic
    body: str | None = None
    body_base64: str | None = None
    key: Annotated[str, Meta(max_length=1_024)] = ""
    headers: dict[str, str] = {}
    bucket: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None


class DeleteStep(msgspec.Struct, forbid_unknown_fields=True, tag="delete", tag_field="do", kw_only=True):
    """Delete a leased message."""

    topic: _Topic
    lease: _Lease


class ReleaseStep(msgspec.Struct, forbid_unknown_fields=True, tag="release", tag_field="do", kw_only=True):
    """Give a leased message back: at a time, after a delay, or at once."""

    topic: _Topic
    lease: _Lease
    at: str | Epoch | None = None
    delay: Seconds | None = None


Step = SendStep | EditStep | MoveStep | CancelStep | AppendStep | DeleteStep | ReleaseStep


class NewTransaction(msgspec.Struct, forbid_unknown_fields=True):
    """The changes, in any order: each is checked against the state before all of them."""

    steps: Annotated[list[Step], Meta(min_length=1, max_length=STEPS_MAX)]


class TransactionDone(msgspec.Struct):
    """All was done. `ids` has the id of the message of each step; it is empty for one of a log."""

    ids: list[str]


class NewFanOut(msgspec.Struct, forbid_unknown_fields=True):
    """A message for several topics. With `atomic` true it is in all or in none; false: each topic decides by itself."""

    topics: Annotated[list[_Topic], Meta(min_length=1, max_length=TOPICS_MAX)]
    message: NewMessage
    atomic: bool | None = None


class FanOutDone(msgspec.Struct):
    """The id of the message, the same in every topic, and the outcome in each."""

    id: str
    codes: dict[str, str]


async def transact(call: ApiCall) -> ApiAnswer:
    """Make all changes, or none: sends, changes, moves and cancels of messages, appends to logs, and what is done with
    leases of `takeLeases`. The first refusal answers, and then nothing was changed.

    With `Idempotency-Key` messages without an id get one that a repeat of the request gets again.
    """
    new = call.json(NewTransaction)
    now = call.client.now_ms()
    own = id_of_key(call.request, "transaction", call.query.group)
    async with call.client.transaction(group=call.query.group) as collected:
        ids = [
            _added(call, collected, step, now, own_id=f"{own}-{place}" if own else None)
            for place, step in enumerate(new.steps)
        ]
    for step in new.steps:
        if isinstance(step, DeleteStep | ReleaseStep):
            call.leases.forget(step.lease)
    return ApiAnswer(TransactionDone(ids))


async def fan_out(call: ApiCall) -> ApiAnswer:
    """Send one message under one id to several topics; in one transaction where they are in one store. `207` when a
    topic refused it, which `codes` shows.
    """
    new = call.json(NewFanOut)
    message = new.message
    own = id_of_key(call.request, "fan-out", call.query.group)
    sent = await call.client.fan_out(
        new.topics,
        decoded_body(message.body, message.body_base64) or b"",
        group=call.query.group,
        id=message.id or own or None,
        priority=message.priority,
        headers=message.headers or None,
        atomic=new.atomic,
        results=True,
        **times_of(message.at, message.delay, call.client.now_ms()),
    )
    codes = {topic: code.name for topic, code in sent.codes.items()}
    return ApiAnswer(FanOutDone(sent.id, codes), status=201 if sent.ok else 207)


def _added(call: ApiCall, transaction: Transaction, step: Step, now_ms: int, *, own_id: str | None) -> str:
    """Add a step to a transaction; returns the id of its message."""
    match step:
        case DeleteStep() | ReleaseStep():
            lease = call.leases.find(step.topic, step.lease)
            if isinstance(step, DeleteStep):
                transaction.delete(lease)
            else:
                transaction.release(lease, **times_of(step.at, step.delay, now_ms))
            return lease.id
        case SendStep():
            return transaction.send(
                step.topic,
                decoded_body(step.body, step.body_base64) or b"",
                id=step.id or own_id,
                priority=step.priority,
                headers=step.headers or None,
                group=step.group,
                **times_of(step.at, step.delay, now_ms),
            )
        case AppendStep():
            body, log = decoded_body(step.body, step.body_base64) or b"", call.gateway.log(step.topic)
            transaction.append(log, body, key=step.key.encode(), headers=step.headers or None, bucket=step.bucket)
            return ""
        case CancelStep():
            transaction.cancel(step.topic, step.id, group=step.group)
        case MoveStep():
            transaction.move(step.topic, step.id, group=step.group, **times_of(step.at, step.delay, now_ms))
        case EditStep():
            transaction.edit(
                step.topic,
                step.id,
                body=decoded_body(step.body, step.body_base64),
                priority=step.priority,
                headers=step.headers,
                version=step.version,
                group=step.group,
                **times_of(step.at, step.delay, now_ms),
            )
    return step.id
