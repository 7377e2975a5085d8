"""The segments that are kept."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dejaq.journal.retention import RetentionPolicy

SIZES = [10, 20, 30, 40]
CREATED = [100, 200, 300, 400]


@pytest.mark.parametrize(
    ("policy", "now", "surplus"),
    [
        (RetentionPolicy(), 10**9, 0),
        (RetentionPolicy(bytes_max=100), 0, 0),
        (RetentionPolicy(bytes_max=99), 0, 1),
        (RetentionPolicy(bytes_max=71), 0, 2),
        (RetentionPolicy(bytes_max=1), 0, 3),
        (RetentionPolicy(age_ms_max=100), 300, 1),
        (RetentionPolicy(age_ms_max=100), 301, 2),
        (RetentionPolicy(age_ms_max=100), 10**9, 3),
        (RetentionPolicy(age_ms_max=100, bytes_max=70), 250, 2),
    ],
)
def test_the_oldest_segments_are_dropped_and_the_newest_stays(policy: RetentionPolicy, now: int, surplus: int) -> None:
    assert policy.surplus(SIZES[:-1], sum(SIZES), CREATED.__getitem__, now) == surplus


def test_only_the_segments_to_drop_are_checked() -> None:
    """D25: with 90 days of segments, each check of all of them took half a second, and checks came once per second."""
    seen: list[int] = []

    def older() -> Iterator[int]:
        for size in range(1, 1_000_000):
            seen.append(size)
            yield 10

    assert RetentionPolicy(bytes_max=9_990).surplus(older(), 10_000, CREATED.__getitem__, 0) == 1
    assert len(seen) == 2


def test_an_empty_journal_has_nothing_to_drop() -> None:
    assert RetentionPolicy(bytes_max=1, age_ms_max=1).surplus([], 0, CREATED.__getitem__, 10**9) == 0
