"""Spreads a topic's buckets over its live consumers: pure, so that every broker deals alike."""

from __future__ import annotations

from collections.abc import Iterable


def deal(consumers: Iterable[str], buckets: int) -> dict[str, range]:
    """Contiguous, near equal ranges in the order of the names, together every bucket exactly once.

    With more consumers than buckets some have none and stand by.
    """
    names = sorted(set(consumers))
    count = len(names)
    return {name: range(buckets * place // count, buckets * (place + 1) // count) for place, name in enumerate(names)}
