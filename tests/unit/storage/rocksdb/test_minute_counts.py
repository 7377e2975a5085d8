"""Counts per minute survive a restart behind any commit, with few records, and add up in hours and days."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from typing import cast

import numpy as np
import pytest

from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import Batch, RocksDatabase
from dejaq.storage.rocksdb.timeline import minute_counts
from dejaq.storage.rocksdb.timeline.memory import minute_table
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


def test_records_of_earlier_releases_are_replaced_a_few_days_per_commit() -> None:
    """R17: one record per minute. A restart in between finds the same counts."""
    records, expected = Records(), dict[int, int]()
    for day in range(100):
        minute = 30_000_000 + day * 1_440
        records.put(keys.numbered(keys.MINUTE_COUNT, TOPIC, minute), (5).to_bytes(8, "big"))
        expected[minute] = 5
    counts = records.load()
    assert counts.total == 500
    for commit in range(60):
        minute = 30_000_000 + commit * 1_440
        counts.add_times([minute * keys.MINUTE_MS] * (commit % 6), -1)
        expected[minute] -= commit % 6
        before = records.puts
        records.write(counts)
        assert records.puts - before <= 5
        if commit in (10, 11, 30):
            counts = records.load()
        assert minutes_of(counts) == {minute: count for minute, count in expected.items() if count}
    assert not any(key[:1] == keys.MINUTE_COUNT for key in records.items)
    assert minutes_of(records.load()) == {minute: count for minute, count in expected.items() if count}


def test_a_commit_with_messages_over_ten_years_takes_little_time() -> None:
    """Each commit writes a few of the 3,650 days that the commits touch, also after restarts."""
    records, chance = Records(), random.Random(2)
    counts = records.load()
    longest = []
    for commit in range(120):
        times = [NOW + chance.randrange(3_650 * DAY_MS) for _ in range(1_000)]
        began = time.thread_time()
        counts.add_times(times, 1)
        records.write(counts)
        longest.append(time.thread_time() - began)
        if commit in (40, 80):
            counts = records.load()
    assert counts.total == 120_000
    # The middle of those that write days; it was 40 ms and more.
    assert sorted(longest)[-12] < 0.01


@pytest.mark.parametrize("few", [0, 10, 10_000])
def test_minutes_in_arrays_and_in_a_dictionary_have_the_same_numbers(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minute_table, "FEW_MINUTES", few)
    monkeypatch.setattr(minute_table, "_PAGE", 1_000)
    chance, table, expected = random.Random(few), minute_table.MinuteTable(), Counter[int]()
    for _ in range(300):
        minutes = sorted({chance.randrange(5_000) for _ in range(chance.randrange(1, 30))})
        deltas = [chance.choice((1, 2, -expected[minute])) for minute in minutes]
        expected.update(dict(zip(minutes, deltas, strict=True)))
        if chance.random() < 0.5:
            table.add_column(np.array(minutes), np.array(deltas))
        else:
            for minute, delta in zip(minutes, deltas, strict=True):
                table.add(minute, delta)
        first = chance.randrange(5_000)
        behind = first + chance.randrange(1, 2_000)
        inside = {minute: count for minute, count in expected.items() if count and first <= minute < behind}
        assert dict(zip(*table.between(first, behind), strict=True)) == inside
        hour = range(first, first + 60)
        assert table.total(hour.start, hour.stop) == sum(expected[minute] for minute in hour)
        assert [table.get(minute) for minute in hour] == [expected[minute] for minute in hour]
    assert len(table) == sum(count != 0 for count in expected.values())
