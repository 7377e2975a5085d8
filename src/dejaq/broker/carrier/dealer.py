"""Spreads a topic's buckets over its live consumers: pure, so that every broker deals alike."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate

from dejaq import limits

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class Seat:
    """A consumer as the dealer sees it: how large its share is to be, and where it stands (empty: anywhere).

    And how it does, for those who weigh it or stand in for it: the weight it started with, messages settled a second,
    whether it lags behind, and whether it lends its buckets for lack of room.
    """

    name: str
    weight: int = limits.WEIGHT_DEFAULT
    rack: str = ""
    start: int = limits.WEIGHT_DEFAULT
    rate: int = 0
    lagging: bool = False
    lending: bool = False


def deal(seats: Iterable[Seat], buckets: int) -> dict[str, Sequence[int]]:
    """Shares as large as the weights say, together every bucket exactly once; a change moves few buckets.

    Each bucket goes to the consumer that it ranks highest among those whose share has room (rendezvous hashing with a
    bound), so the deal depends on the set of seats alone. A consumer whose share is less than a bucket may have none,
    and stands by.
    """
    ordered = sorted({seat.name: seat for seat in seats}.values(), key=lambda seat: seat.name)
    return dict(_deal(tuple((seat.name, seat.weight) for seat in ordered), buckets))


@lru_cache(maxsize=256)
def _deal(weighted: tuple[tuple[str, int], ...], buckets: int) -> dict[str, Sequence[int]]:
    if len(weighted) <= 1:
        return {name: range(buckets) for name, _ in weighted}
    edges = [0, *accumulate(weight for _, weight in weighted)]
    room = [
        buckets * edges[place + 1] // edges[-1] - buckets * edges[place] // edges[-1] for place in range(len(weighted))
    ]
    seeds = [int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big") for name, _ in weighted]
    shares: list[list[int]] = [[] for _ in weighted]
    for bucket in range(buckets):
        key = bucket * _GOLDEN & _MASK
        best = min((_mix(seeds[place] ^ key), place) for place, left in enumerate(room) if left)[1]
        room[best] -= 1
        shares[best].append(bucket)
    return {name: share for (name, _), share in zip(weighted, shares, strict=True)}


def _mix(value: int) -> int:
    """Spread the bits of a 64-bit number (the finalizer of splitmix64)."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)


def stand_in(bucket: int, owner: Seat, others: Sequence[Seat]) -> Seat | None:
    """Who serves a bucket while its owner cannot: in another rack where there is one, else whoever; None for nobody.

    Each bucket has its own order of stand-ins, so that the buckets of one owner spread over all of them.
    """
    elsewhere = [seat for seat in others if seat.rack != owner.rack] if owner.rack else []
    return max(elsewhere or others, key=lambda seat: (_score(seat.name, bucket), seat.name), default=None)


def _score(name: str, bucket: int) -> int:
    return zlib.crc32(b"%d" % bucket, zlib.crc32(name.encode())) * 0x9E3779B1 & 0xFFFFFFFF
