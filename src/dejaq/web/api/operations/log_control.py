"""Log topics: batches that are taken out again, prepared transactions, and the offsets of a time."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from dejaq.errors import Code, error_of
from dejaq.web.api.operation import ApiAnswer, ApiCall
from dejaq.web.api.times import iso_of, parse_time


class OffsetsQuery(msgspec.Struct, forbid_unknown_fields=True):
    """A time."""

    at: str


class OffsetsOfTime(msgspec.Struct):
    """The first offset of a time, by bucket."""

    offsets: list[int]


class BatchName(msgspec.Struct, forbid_unknown_fields=True):
    """The name of a batch, as `appendBatch` answered it."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]


class PreparedValue(msgspec.Struct):
    """A prepared transaction: until when it can be committed, its messages, and how many offsets it commits."""

    name: str
    prepared: str
    deadline: str
    messages: int
    offsets: int


class PreparedList(msgspec.Struct):
    """The prepared transactions that are not resolved."""

    prepared: list[PreparedValue]


class Resolution(msgspec.Struct, forbid_unknown_fields=True):
    """Whether to commit a prepared transaction, or to abort it."""

    commit: bool


async def offsets_for_time(call: ApiCall) -> ApiAnswer:
    """The first offset of a time in every bucket."""
    at = parse_time(call.query.at, call.client.now_ms())
    if at is None:
        raise error_of(Code.INVALID_TIME, "give a time")
    return ApiAnswer(OffsetsOfTime(await call.log.offsets_for_time(int(at))))


async def rollback_batch(call: ApiCall) -> ApiAnswer:
    """Take out a batch, within the rollback window of the topic."""
    await call.log.rollback(call.json(BatchName).name)
    return ApiAnswer(status=204)


async def list_prepared(call: ApiCall) -> ApiAnswer:
    """The transactions that were prepared under names of this log, and are not resolved."""
    found = await call.log.in_doubt()
    rows = [
        PreparedValue(
            one.name,
            iso_of(round(one.prepared.timestamp() * 1_000)),
            iso_of(round(one.deadline.timestamp() * 1_000)),
            one.messages,
            one.offsets,
        )
        for one in found
    ]
    return ApiAnswer(PreparedList(rows))


async def resolve_prepared(call: ApiCall) -> ApiAnswer:
    """Commit or abort a prepared transaction; a repeat of the same decision does nothing."""
    if call.json(Resolution).commit:
        await call.log.commit_prepared(call.path["name"])
    else:
        await call.log.abort_prepared(call.path["name"])
    return ApiAnswer(status=204)
