"""Changes by id, against a table in memory."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import pytest
from bench.harness.by_id import MOVE_SPREAD_MS, change_by_id, drawn_ids
from bench.harness.orders import CHANGES_BY_ID, ChangeById, ChangeKind
from bench.harness.payload import FAR_PREFIX, Load

PENDING = Load(count=1_000, prefix=FAR_PREFIX, start_ms=5_000, scatter_ms=30 * 86_400_000)
ORDER = ChangeById(kind="get", count=200, batch=50, in_flight=3, first=0, population=500, seconds_max=60.0)


class Table:
    def __init__(self) -> None:
        self.rows = {PENDING.id_of(row): PENDING.due_ms(row) for row in range(PENDING.count)}
        self.bodies: dict[str, bytes] = {}
        self.calls: list[int] = []

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def get(self, ids: Sequence[str]) -> int:
        self.calls.append(len(ids))
        return sum(message_id in self.rows for message_id in ids)

    async def move(self, ids: Sequence[str], due_ms: Sequence[int]) -> None:
        self.rows.update(zip(ids, due_ms, strict=True))

    async def edit(self, ids: Sequence[str], bodies: Sequence[bytes]) -> None:
        self.bodies.update(zip(ids, bodies, strict=True))

    async def cancel(self, ids: Sequence[str]) -> None:
        for message_id in ids:
            del self.rows[message_id]


def test_ids_are_drawn_once_each_from_the_pending_messages() -> None:
    ids = drawn_ids(ORDER)
    known = [PENDING.id_of(row) for row in range(500)]
    assert len(set(ids)) == 200
    assert set(ids) <= set(known)
    assert ids != sorted(ids, key=known.index)


def test_the_batch_sizes_draw_from_parts_that_do_not_overlap() -> None:
    other = replace(ORDER, first=500)
    assert set(drawn_ids(other)) <= {PENDING.id_of(row) for row in range(500, 1_000)}


@pytest.mark.parametrize("kind", CHANGES_BY_ID)
async def test_each_kind_changes_as_many_as_are_asked_for(kind: ChangeKind) -> None:
    table = Table()
    before = dict(table.rows)
    done = await change_by_id(table, replace(ORDER, kind=kind), time.time_ns)
    assert done.count == 200
    moved = {message_id: due for message_id, due in table.rows.items() if before[message_id] != due}
    assert len(moved) == (200 if kind == "move" else 0)
    assert len(table.bodies) == (200 if kind == "edit" else 0)
    assert len(table.rows) == (800 if kind == "cancel" else 1_000)
    assert table.calls == ([50] * 4 if kind == "get" else [])
    if kind == "move":
        assert max(moved.values()) - min(moved.values()) > MOVE_SPREAD_MS / 2


async def test_a_pending_message_that_is_not_found_fails_the_run() -> None:
    table = Table()
    del table.rows[drawn_ids(ORDER)[7]]
    with pytest.raises(RuntimeError, match="1 of 50 pending messages were not found"):
        await change_by_id(table, ORDER, time.time_ns)


async def test_the_time_ends_the_work() -> None:
    assert (await change_by_id(Table(), replace(ORDER, seconds_max=-1.0), time.time_ns)).count == 0
