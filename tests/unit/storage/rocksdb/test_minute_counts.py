"""Counts per minute survive a restart behind any commit, with few records, and add up in hours and days."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import cast

import pytest

from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import Batch, RocksDatabase
from dejaq.storage.rocksdb.timeline import minute_counts
from dejaq.storage.rocksdb.timeline.minute_counts import READY_COUNTS, MinuteCounts

TOPIC = 7
NOW = 1_800_000_000_000
DAY_MS = 86_400_000


class Records:
    """A database, and batches that are written at once."""

    def __init__(self) -> None:
        self.items: dict[bytes, bytes] = {}
        self.puts = 0

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        return iter(sorted((key, value) for key, value in self.items.items() if start <= key < end))

    def put(self, key: bytes, value: bytes) -> None:
        self.items[key] = value
        self.puts += 1

    def delete(self, key: bytes) -> None:
        self.items.pop(key, None)

    def delete_range(self, start: bytes, end: bytes) -> None:
        for key, _ in self.scan(start, end):
            del self.items[key]

    def load(self, base: int = 0) -> MinuteCounts:
        counts = MinuteCounts(TOPIC, base)
        counts.load(cast(RocksDatabase, self))
        return counts

    def write(self, counts: MinuteCounts) -> None:
        counts.write(cast(Batch, self))


def minutes_of(counts: MinuteCounts) -> dict[int, int]:
    return {first // keys.MINUTE_MS: count for first, _, count in counts.between(0, 2**62)}


@pytest.mark.parametrize("seed", range(9))
def test_a_restart_behind_any_commit_finds_the_same_counts(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """G1: exact counts, whatever was written in which record."""
    if seed % 2:
        monkeypatch.setattr(minute_counts, "FOLD_EVERY", 4)
        monkeypatch.setattr(minute_counts, "SLOTS", 16)
    chance, records = random.Random(seed), Records()
    base = READY_COUNTS if seed > 5 else 0
    counts, expected = records.load(base), dict[int, int]()
    days = (1, 3, 200)[seed % 3]
    for _ in range(400):
        for _ in range(chance.randrange(1, 6)):
            minute = NOW // keys.MINUTE_MS + chance.randrange(days) * 1_440 + chance.randrange(3)
            if expected.get(minute) and chance.random() < 0.6:
                gone = chance.randrange(1, expected[minute] + 1)
                expected[minute] -= gone
                counts.add_times([minute * keys.MINUTE_MS + 59_999] * gone, -1)
            else:
                expected[minute] = expected.get(minute, 0) + 2
                counts.add(minute * keys.MINUTE_MS // keys.SLICE_MS, 2)
        records.write(counts)
        if chance.random() < 0.1:
            counts = records.load(base)
        assert minutes_of(counts) == {minute: count for minute, count in expected.items() if count}
        assert counts.total == sum(expected.values())
    for minute, count in expected.items():
        counts.add_times([minute * keys.MINUTE_MS] * count, -1)
    records.write(counts)
    counts = records.load(base)
    assert counts.total == 0
    for _ in range(4 * minute_counts.FOLD_EVERY):
        counts.add(0, 1)
        records.write(counts)
    # No record of an empty day stays.
    assert sum(key[:1] == keys.DAY_COUNTS for key in records.items) <= 1


def test_a_scattered_commit_writes_few_records() -> None:
    records, chance = Records(), random.Random(1)
    counts = records.load()
    commits = 300
    for _ in range(commits):
        counts.add_times([NOW + chance.randrange(30 * DAY_MS) for _ in range(1_000)], 1)
        records.write(counts)
    assert records.puts <= 2 * commits
    assert len(records.items) <= minute_counts.SLOTS + 31


def test_records_of_earlier_releases_are_replaced() -> None:
    """R17: one record per minute."""
    records = Records()
    for minute in (30_000_000, 30_000_001, 30_009_999):
        records.put(keys.numbered(keys.MINUTE_COUNT, TOPIC, minute), (5).to_bytes(8, "big"))
    counts = records.load()
    assert counts.total == 15
    counts.add_times([30_000_001 * keys.MINUTE_MS], -1)
    records.write(counts)
    assert not any(key[:1] == keys.MINUTE_COUNT for key in records.items)
    assert minutes_of(records.load()) == {30_000_000: 5, 30_000_001: 4, 30_009_999: 5}
