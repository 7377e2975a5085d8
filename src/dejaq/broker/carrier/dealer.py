"""Spreads a topic's buckets over its live consumers: pure, so that every broker deals alike."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from dejaq import limits


@dataclass(frozen=True, slots=True)
class Seat:
    """A consumer as the dealer sees it: how large its share is to be, and where it stands (empty: anywhere)."""

    name: str
    weight: int = limits.WEIGHT_DEFAULT
    rack: str = ""


def deal(seats: Iterable[Seat], buckets: int) -> dict[str, range]:
    """Contiguous ranges in the order of the names, as long as the weights say, together every bucket exactly once.

    A consumer whose share is less than a bucket may have none, and stands by.
    """
    ordered = sorted({seat.name: seat for seat in seats}.values(), key=lambda seat: seat.name)
    edges = [0, *accumulate(seat.weight for seat in ordered)]
    total = edges[-1]
    return {
        seat.name: range(buckets * edges[place] // total, buckets * edges[place + 1] // total)
        for place, seat in enumerate(ordered)
    }


def stand_in(bucket: int, owner: Seat, others: Sequence[Seat]) -> Seat | None:
    """Who serves a bucket while its owner cannot: in another rack where there is one, else whoever; None for nobody.

    Each bucket has its own order of stand-ins, so that the buckets of one owner spread over all of them.
    """
    elsewhere = [seat for seat in others if seat.rack != owner.rack] if owner.rack else []
    return max(elsewhere or others, key=lambda seat: (_score(seat.name, bucket), seat.name), default=None)


def _score(name: str, bucket: int) -> int:
    return zlib.crc32(b"%d" % bucket, zlib.crc32(name.encode())) * 0x9E3779B1 & 0xFFFFFFFF
