"""Random calls have the same answers on every store with logs as on the memory store, which is the model."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.topic import Topic, TopicKind, TopicSettings
from dejaq.errors import DejaqError
from dejaq.storage.log.base import Append, KeepsLogs, LogName, LogRetention, LogStorage, OffsetCommit, StoredBatch
from dejaq.storage.memory.store import MemoryStorage
from tests.chaos.sizes import FULL
from tests.conformance.backends import postgres, rocksdb
from tests.conformance.segments import rocksdb_segments
from tests.conformance.test_logs import without_tail

STORES = {
    "rocksdb": rocksdb,
    "rocksdb_without_tail": without_tail,
    "rocksdb_segments": rocksdb_segments,
    "postgres": postgres,
}
SEEDS = range(30 if FULL else 2)
STEPS = 500 if FULL else 120
BUCKETS = 2
START = 1_700_000_000_000


def call_of(chance: random.Random, number: int) -> tuple[str, dict[str, Any]]:
    """A random call, as its name and arguments; claims are numbered in the order in which they were made."""
    bucket = chance.randrange(BUCKETS)
    name = LogName(b"0123456789", chance.randrange(number + 1)) if chance.random() < 0.5 else None
    kind = chance.choice(
        ("append", "append", "append", "read", "read", "offsets", "rollback", "claim", "commit", "retain")
    )
    match kind:
        case "append":
            text = bytes([number % 251]) * chance.randint(1, 5)
            until = START + chance.randint(0, 60_000) if chance.random() < 0.2 else None
            batch = Append(bucket, text, len(text), name, until, chance.choice((0, 0, 500, 5_000)))
            return kind, {"batches": [batch]}
        case "read":
            committed, bytes_max = chance.random() < 0.7, chance.choice((1, 7, 1_000))
            return kind, {
                "bucket": bucket,
                "start": chance.randrange(40),
                "committed": committed,
                "bytes_max": bytes_max,
            }
        case "rollback":
            return kind, {"name": name or LogName(b"0123456789", chance.randrange(number + 1))}
        case "claim":
            return kind, {"group": chance.choice("ab"), "buckets": [bucket]}
        case "commit":
            return kind, {"group": chance.choice("ab"), "bucket": bucket, "offset": chance.randrange(40)}
        case "retain":
            keep_ms, keep_bytes = chance.choice((0, 0, 3_000)), chance.choice((0, 0, 40))
            return kind, {"retention": LogRetention(keep_ms, keep_bytes, trim_read=chance.random() < 0.3)}
    return kind, {}


async def answer_of(logs: LogStorage, topic: Topic, kind: str, values: dict[str, Any], now: int, claims: Any) -> object:
    """What a store answers; numbers that differ between stores are left out."""
    try:
        match kind:
            case "append":
                answers = await logs.append(topic, values["batches"], now, DIRECT_CALL)
                return [one.code if isinstance(one, DejaqError) else one for one in answers]
            case "read":
                found: list[StoredBatch] = []
                while (part := await logs.read(topic, now=now, end=None, **values)).next > values["start"]:
                    found += part.batches
                    values = {**values, "start": part.next}
                return found, part.next
            case "offsets":
                groups = await logs.groups(topic)
                reads = {name: {b: (o.offset, o.at) for b, o in held.items()} for name, held in groups.items()}
                minutes = [await logs.minutes(topic, bucket, START, now + 60_000) for bucket in range(BUCKETS)]
                times = [await logs.offset_for_time(topic, bucket, now - 1_000) for bucket in range(BUCKETS)]
                return await logs.offsets(topic, now), reads, minutes, times
            case "rollback":
                return await logs.rollback(topic, values["name"], now, DIRECT_CALL)
            case "claim":
                number, offsets = await logs.claim(topic, values["group"], values["buckets"], now, DIRECT_CALL)
                claims.update({(values["group"], bucket): number for bucket in values["buckets"]})
                return dict(offsets)
            case "commit":
                claim = claims.get((values["group"], values["bucket"]), 0)
                commits = [OffsetCommit(values["bucket"], values["offset"], claim)]
                return await logs.commit(topic, values["group"], commits, now, DIRECT_CALL)
            case _:
                return await logs.retain(topic, values["retention"], now, DIRECT_CALL)
    except DejaqError as error:
        return error.code


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("store", STORES)
async def test_random_calls_have_the_answers_of_the_model(store: str, seed: int, tmp_path: Path) -> None:
    chance, now = random.Random(seed), START
    model, other = MemoryStorage(), STORES[store](tmp_path / "store")()
    topic = Topic("events", 1, TopicSettings(kind=TopicKind.LOG, buckets=BUCKETS), created_ms=START)
    claims: list[dict[Any, int]] = [{}, {}]
    stores = (model, other)
    for one in stores:
        await one.open(START)
        await one.put_topic(topic, DIRECT_CALL)
    try:
        for number in range(STEPS):
            # A clock that is set back may shorten windows at different calls; the conformance suite has checks of it.
            now += chance.choice((0, 1, 100, 700, 2_000))
            kind, values = call_of(chance, number)
            answers = []
            for one, known in zip(stores, claims, strict=True):
                assert isinstance(one, KeepsLogs)
                answers.append(await answer_of(one.logs, topic, kind, values, now, known))
            assert answers[1] == answers[0], f"step {number}: {kind} {values} at {now - START}"
    finally:
        await other.close()
