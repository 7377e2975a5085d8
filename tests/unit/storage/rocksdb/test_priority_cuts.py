"""A batch of a priority topic becomes runs of one priority, or of the rows of an aligned block of priorities."""

from __future__ import annotations

import random

import pytest

from dejaq.domain.batch import CreateBatch
from dejaq.domain.ids import ProducerSession
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.timeline.priority_cuts import BLOCK_ROWS, cuts
from dejaq.storage.rocksdb.timeline.run import BLOCK_BITS

NOW = 1_800_000_000_000
SESSION = ProducerSession(NOW, 1)


def batch(priorities: list[int], ts: list[int] | None = None, *, ids: bool) -> CreateBatch:
    times = [NOW] * len(priorities) if ts is None else ts
    names = [f"m{row}" for row in range(len(priorities))] if ids else None
    return CreateBatch("g", SESSION, 0, times, [b""] * len(priorities), ids=names, bucket=3, priorities=priorities)


@pytest.mark.parametrize("ids", [False, True])
@pytest.mark.parametrize("span", [1, 5, 300, 10_000, 2**31])
def test_due_rows_become_runs_of_aligned_blocks(span: int, *, ids: bool) -> None:
    chance = random.Random(span)
    priorities = sorted(chance.randrange(-span, span) for _ in range(1_000))
    seen: list[int] = []
    for (bucket, time_slice), rows in cuts(batch(priorities, ids=ids), [3] * 1_000, [(0, 1_000)], NOW, spread=ids):
        found = [priorities[row] for row in rows]
        assert bucket == (keys.SPREAD if ids else 3)
        assert keys.ready_priority(time_slice) == found[0]
        assert found == sorted(found)
        assert len(found) <= BLOCK_ROWS or found[0] == found[-1]
        assert found[0] >> BLOCK_BITS == found[-1] >> BLOCK_BITS
        seen += rows
    assert sorted(seen) == list(range(1_000))


def test_batches_that_are_alike_have_runs_in_the_same_blocks() -> None:
    def blocks(seed: int) -> set[tuple[int, int]]:
        chance = random.Random(seed)
        priorities = sorted(chance.randrange(10_000) for _ in range(1_000))
        found = cuts(batch(priorities, ids=False), (), [(0, 1_000)], NOW, spread=False)
        return {(priorities[rows[0]] >> BLOCK_BITS, priorities[rows[-1]] >> BLOCK_BITS) for _, rows in found}

    assert blocks(1) == blocks(2)


def test_rows_of_several_times_or_ahead_of_their_time_have_one_priority() -> None:
    """Generated ids stay consecutive; a run that is sorted by time cannot have several priorities."""
    ts = [NOW - 2, NOW - 2, NOW - 1, NOW - 1, NOW + 50, NOW + 60, NOW + keys.SLICE_MS]
    priorities = [1, 2, 0, 0, 4, 4, 4]
    found = [
        (time_slice, list(rows))
        for (_, time_slice), rows in cuts(batch(priorities, ts, ids=False), (), [(0, len(ts))], NOW, spread=False)
    ]
    ahead = NOW // keys.SLICE_MS
    assert found == [
        (keys.ready_slice(1), [0, 1]),
        (keys.ready_slice(0), [2, 3]),
        (ahead, [4, 5]),
        (ahead + 1, [6]),
    ]
