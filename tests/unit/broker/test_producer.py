"""The calls of a producer: create, edit and cancel, with an answer for each item, within the limits."""

from __future__ import annotations

from typing import Any

import pytest

from dejaq import limits
from dejaq.broker import Broker
from dejaq.domain.headers import encode_headers
from dejaq.domain.message import Message
from dejaq.errors import Code
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.storage.memory.store import MemoryStorage
from dejaq.timekeeper.clock import VirtualClock
from tests.unit.broker.client import Batches, RawClient
from tests.unit.broker.conftest import Connect


@pytest.fixture
async def producer(connect: Connect) -> RawClient:
    return await (await connect()).produce()


@pytest.fixture
def batches() -> Batches:
    return Batches()


async def stored(broker: Broker, clock: VirtualClock, *ids: str) -> list[Message | None]:
    return await broker.central.storage.get(broker.central.catalog.live("mail"), ids, clock.now_ms())


def codes(answer: carrier.BrokerFrame) -> dict[int, Code]:
    assert answer.HasField("outcomes"), answer
    return {row: Code(code) for row, code in zip(answer.outcomes.rows, answer.outcomes.codes, strict=True)}


async def test_a_create_is_stored_with_all_its_fields(
    producer: RawClient, batches: Batches, broker: Broker, clock: VirtualClock
) -> None:
    headers = encode_headers({"trace": "1"})
    batch = batches.natural(["a"], 5_000, bodies=[b"hi"], priorities=[-3], headers=[headers], relative=True)
    assert codes(await producer.ask(create=batch)) == {}
    (message,) = await stored(broker, clock, "a")
    assert message is not None
    assert (message.ts, message.body, message.priority) == (clock.now_ms() + 5_000, b"hi", -3)
    assert (message.producer_group, message.headers) == ("billing", {"trace": "1"})


async def test_a_repeat_is_reported_and_other_content_is_refused(producer: RawClient, batches: Batches) -> None:
    """G5: create is idempotent by id."""
    batch = batches.natural(["a", "b"], 1_000)
    assert codes(await producer.ask(create=batch)) == {}
    assert codes(await producer.ask(create=batch)) == dict.fromkeys((0, 1), Code.ALREADY_EXISTS)
    other = batches.natural(["a", "c"], 1_000, bodies=[b"other", b"new"])
    assert codes(await producer.ask(create=other)) == {0: Code.ID_TAKEN}


async def test_a_repeat_whose_time_is_relative_is_already_there(producer: RawClient, batches: Batches) -> None:
    """U7: by the rows that are named, and where the batch holds delays, for all."""
    assert codes(await producer.ask(create=batches.natural(["a", "b"], 1_000))) == {}
    some = batches.natural(["a", "b"], 2_000, relative_rows=[1, 2])
    assert codes(await producer.ask(create=some)) == {0: Code.ID_TAKEN, 1: Code.ALREADY_EXISTS}
    delays = batches.natural(["a", "b"], 2_000, relative=True)
    assert codes(await producer.ask(create=delays)) == dict.fromkeys((0, 1), Code.ALREADY_EXISTS)
    for ranges in ([0], [1, 1], [0, 3], [1, 2, 0, 1]):
        refused = await producer.ask(create=batches.natural(["a", "b"], 2_000, relative_rows=ranges))
        assert refused.error.code == Code.INVALID_ARGUMENT


async def test_each_invalid_item_has_its_own_refusal_and_the_others_are_created(
    producer: RawClient, batches: Batches, broker: Broker, clock: VirtualClock
) -> None:
    """G6: every item has a definite outcome."""
    now = clock.now_ms()
    ids = ["ok", "", "x" * 65, "ümlaut", "line\nbreak", "ok", "neg", "over", "far", "head", "big", "last"]
    ts = [now] * len(ids)
    ts[6], ts[7], ts[8] = -1, 2**62, now + limits.FUTURE_MS_DEFAULT + 1
    headers = [b""] * len(ids)
    headers[9] = b"\xff not headers"
    bodies = [b""] * len(ids)
    bodies[10] = bytes(limits.BODY_BYTES_MAX + 1)
    answer = await producer.ask(create=batches.natural(ids, ts, headers=headers, bodies=bodies))
    assert codes(answer) == {
        1: Code.INVALID_ID,
        2: Code.INVALID_ID,
        3: Code.INVALID_ID,
        4: Code.INVALID_ID,
        5: Code.DUPLICATE_IN_BATCH,
        6: Code.INVALID_TIME,
        7: Code.INVALID_TIME,
        8: Code.TOO_FAR,
        9: Code.INVALID_HEADERS,
        10: Code.BODY_TOO_LARGE,
    }
    assert all(await stored(broker, clock, "ok", "last"))
    assert await stored(broker, clock, "neg", "over", "far", "head", "big") == [None] * 5


async def test_values_just_inside_the_limits_are_accepted(
    producer: RawClient, batches: Batches, clock: VirtualClock
) -> None:
    """G8: values exactly at the limits."""
    headers = encode_headers({f"{n:03}": "v" * (limits.HEADERS_BYTES_MAX // 32 - 3) for n in range(32)})
    batch = batches.natural(
        ["x" * limits.ID_CHARS_MAX, "past", "far", "head", "big"],
        [0, 0, clock.now_ms() + limits.FUTURE_MS_DEFAULT, 0, 0],
        headers=[b"", b"", b"", headers, b""],
        bodies=[b"", b"", b"", b"", bytes(limits.BODY_BYTES_MAX)],
        priorities=[limits.PRIORITY_MIN, limits.PRIORITY_MAX, 0, 0, 0],
    )
    assert codes(await producer.ask(create=batch)) == {}


@pytest.mark.parametrize(
    "headers",
    [
        {f"k{n}": "v" for n in range(limits.HEADERS_COUNT_MAX + 1)},
        {"k": "v" * limits.HEADERS_BYTES_MAX},
        {"": "empty key"},
    ],
)
async def test_headers_beyond_the_limits_are_refused(
    producer: RawClient, batches: Batches, headers: dict[str, str]
) -> None:
    batch = batches.natural(["a", "b"], 0, headers=[encode_headers(headers), b""])
    assert codes(await producer.ask(create=batch)) == {0: Code.INVALID_HEADERS}


async def test_a_batch_may_have_as_many_items_as_the_limit_and_not_one_more(
    producer: RawClient, batches: Batches
) -> None:
    most = [f"m{n}" for n in range(limits.BATCH_COUNT_MAX)]
    assert codes(await producer.ask(create=batches.natural(most, 0))) == {}
    answer = await producer.ask(create=batches.natural([*most, "one more"], 0))
    assert answer.error.code == Code.BATCH_TOO_LARGE
    answer = await producer.ask(cancel=carrier.CancelBatch(ids=[*most, "extra"]))
    assert answer.error.code == Code.BATCH_TOO_LARGE
    answer = await producer.ask(edit=carrier.EditBatch(ids=[*most, "extra"], ts=[1] * (len(most) + 1)))
    assert answer.error.code == Code.BATCH_TOO_LARGE
    assert codes(await producer.ask(cancel=carrier.CancelBatch(ids=most))) == {}


async def test_a_batch_may_have_as_many_bytes_as_the_limit_and_not_one_more(
    producer: RawClient, batches: Batches
) -> None:
    parts = limits.BATCH_BYTES_MAX // limits.BODY_BYTES_MAX
    bodies = [bytes(limits.BODY_BYTES_MAX)] * parts
    ids = [f"m{n}" for n in range(parts)]
    assert codes(await producer.ask(create=batches.natural(ids, 0, bodies=bodies))) == {}
    answer = await producer.ask(create=batches.natural([*ids, "x"], 0, bodies=[*bodies, b"x"]))
    assert answer.error.code == Code.BATCH_TOO_LARGE
    answer = await producer.ask(edit=carrier.EditBatch(ids=[*ids, "x"], bodies=[*bodies, b"x"]))
    assert answer.error.code == Code.BATCH_TOO_LARGE


async def test_an_owner_moves_edits_and_cancels(
    producer: RawClient, batches: Batches, broker: Broker, clock: VirtualClock
) -> None:
    later = clock.now_ms() + 60_000
    await producer.ask(create=batches.natural(["a", "b", "c"], later))
    edit = carrier.EditBatch(
        ids=["a", "b", "nobody"],
        ts=[1_000, 2_000, 3_000],
        bodies=[b"A", b"B", b"N"],
        priorities=[1, 2, 3],
        relative=True,
    )
    assert codes(await producer.ask(edit=edit)) == {2: Code.NOT_FOUND}
    first, second = (await stored(broker, clock, "a", "b"))[:2]
    assert first is not None
    assert second is not None
    assert (first.ts, first.body, first.priority) == (clock.now_ms() + 1_000, b"A", 1)
    assert (second.ts, second.body, second.priority) == (clock.now_ms() + 2_000, b"B", 2)
    stale = carrier.EditBatch(ids=["a", "b"], bodies=[b"X", b"Y"], versions=[first.version, first.version + 99])
    assert codes(await producer.ask(edit=stale)) == {1: Code.VERSION_CONFLICT}
    cancel = carrier.CancelBatch(ids=["a", "bad id", "c", "c"])
    assert codes(await producer.ask(cancel=cancel)) == {1: Code.INVALID_ID, 3: Code.NOT_FOUND}
    assert await stored(broker, clock, "a", "c") == [None, None]


async def test_another_group_may_not_change_a_message(producer: RawClient, batches: Batches, connect: Connect) -> None:
    await producer.ask(create=batches.natural(["a"], 0))
    other = await (await connect()).produce(group="other")
    assert codes(await other.ask(cancel=carrier.CancelBatch(ids=["a"]))) == {0: Code.NOT_OWNER}
    assert codes(await other.ask(edit=carrier.EditBatch(ids=["a"], ts=[1]))) == {0: Code.NOT_OWNER}


@pytest.mark.parametrize(
    "edit",
    [
        {"ids": []},
        {"ids": ["a"]},
        {"ids": ["a"], "versions": [1]},
        {"ids": ["a"], "ts": [1, 2]},
        {"ids": ["a", "b"], "bodies": [b"x"]},
        {"ids": ["a", "b"], "ts": [1, 2], "versions": [1]},
    ],
)
async def test_a_malformed_edit_is_refused_as_a_whole(producer: RawClient, edit: dict[str, Any]) -> None:
    assert (await producer.ask(edit=carrier.EditBatch(**edit))).error.code == Code.INVALID_ARGUMENT


async def test_only_the_invalid_items_of_an_edit_are_refused(
    producer: RawClient, batches: Batches, broker: Broker, clock: VirtualClock, storage: MemoryStorage
) -> None:
    await producer.ask(create=batches.natural(["a", "b", "c", "d"], 0))
    edit = carrier.EditBatch(
        ids=["a", "b", "c", "d"],
        ts=[-1, clock.now_ms() + 7, 5, 5],
        bodies=[b"", b"new", bytes(limits.BODY_BYTES_MAX + 1), b""],
        headers=[b"", b"", b"", b"\xff"],
    )
    assert codes(await producer.ask(edit=edit)) == {
        0: Code.INVALID_TIME,
        2: Code.BODY_TOO_LARGE,
        3: Code.INVALID_HEADERS,
    }
    (message,) = await stored(broker, clock, "b")
    assert message is not None
    assert (message.ts, message.body) == (clock.now_ms() + 7, b"new")
