"""Assigns a topic's buckets to its live consumers: pure, so that every broker computes the same assignment.

Each bucket tries up to `PROBES` consumers, those at its own positions of a ring, and takes the first whose share is not
full of buckets with smaller numbers. The few buckets that find no place get what is left. The result depends on the set
of consumers alone, and not on the order in which they came.

A change computes only the buckets that it may concern: those of a consumer that left or has a smaller share, those that
were refused by a consumer that has room now, and those whose positions belong to a new consumer. They are computed in
the order of their numbers, so each is computed once.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heapify, heappop, heappush
from operator import ne

from dejaq import limits
from dejaq.broker.assignment.ring import Ring, points_per_name, position_of, seed_of
from dejaq.broker.assignment.shares import shares_of

PROBES = 16
# After so many steps of work the computation pauses; a step takes about a microsecond.
PAUSE_STEPS = 500
# So many names enter or leave the ring at one time.
RING_NAMES = 32
_BUCKET_SEEDS = 0xD1B54A32D192ED03


@dataclass(frozen=True, slots=True)
class Seat:
    """A consumer as the assignment needs it: the size of its share, and its rack (empty: unknown).

    The other fields describe its pace: the weight it started with, messages settled per second, whether it lags behind,
    and whether it shares its buckets because it has no credit.
    """

    name: str
    weight: int = limits.WEIGHT_DEFAULT
    rack: str = ""
    start: int = limits.WEIGHT_DEFAULT
    rate: int = 0
    lagging: bool = False
    sharing: bool = False


def assign_buckets(seats: Iterable[Seat], buckets: int) -> dict[str, Sequence[int]]:
    """Shares in proportion to the weights, together every bucket exactly once; a change moves few buckets.

    A consumer whose share is less than one bucket may have none.
    """
    weights = {seat.name: seat.weight for seat in seats}
    assignment = Assignment(buckets)
    for _ in assignment.change(weights):
        pass
    return {name: assignment.of(name) for name in weights}


class Assignment:
    """The consumer of each bucket of one topic, kept up to date."""

    def __init__(self, buckets: int) -> None:
        self._weights: dict[str, int] = {}
        self._seeds: dict[str, int] = {}
        self._shares: dict[str, int] = {}
        self._ring = Ring()
        # By name: the buckets that have a place there, sorted, and the buckets that were refused there.
        self._placed: dict[str, list[int]] = {}
        self._refused: dict[str, set[int]] = {}
        # By bucket: the names that refused it, and the name where it has its place.
        self._tried: list[list[str]] = [[] for _ in range(buckets)]
        self._place: list[str | None] = [None] * buckets
        # Buckets without a place, and who has them.
        self._leftover: dict[int, str] = {}
        self._homeless: set[int] = set(range(buckets))
        self._roomy: set[str] = set()
        # Buckets to compute, as a heap, and what their owners were before the change.
        self._due: list[int] = []
        self._queued: set[int] = set()
        self._before: dict[int, str | None] = {}
        # How many steps of work were done so far.
        self.steps = 0

    def owner(self, bucket: int) -> str | None:
        """The name that has a bucket; None without consumers."""
        return self._place[bucket] or self._leftover.get(bucket)

    def of(self, name: str) -> list[int]:
        """The buckets of a name, sorted."""
        return sorted([*self._placed.get(name, ()), *(b for b, owner in self._leftover.items() if owner == name)])

    def change(self, weights: Mapping[str, int], gone: Iterable[str] = ()) -> Iterator[None]:
        """Apply new names or weights, and names that are gone; pauses after each `PAUSE_STEPS`.

        Nothing may be read, and no other change begun, before it has ended; `take_moved` then returns what moved.
        """
        removed = {name for name in gone if name not in weights and self._weights.pop(name, None) is not None}
        self._weights.update(weights)
        self._seeds.update({name: seed_of(name) for name in weights if name not in self._seeds})
        shares = shares_of(self._weights, self._seeds, len(self._place))
        self.steps += len(weights) + len(removed)
        yield from self._take_shares(shares, removed)
        for name in removed:
            del self._seeds[name]
        yield from self._compute()
        self._share_leftovers()

    def take_moved(self) -> dict[int, tuple[str | None, str | None]]:
        """The buckets that have moved since the last call, each with its owner before and now."""
        before, self._before = self._before, {}
        return {bucket: (old, new) for bucket, old in before.items() if old != (new := self.owner(bucket))}

    def _take_shares(self, shares: dict[str, int], removed: set[str]) -> Iterator[None]:
        """Apply the sizes of the shares; names without a share have no points in the ring."""
        before, self._shares = self._shares, shares
        changed = {name: size for name, size in shares.items() if before.get(name, 0) != size}
        leaving = {name for name in removed if before.get(name)}
        leaving |= {name for name, size in changed.items() if not size and before.get(name)}
        entering = {name for name in changed if not before.get(name)}
        for name in leaving:
            for bucket in [*self._placed.pop(name, ()), *self._refused.pop(name, ())]:
                self._queue(bucket)
            self._roomy.discard(name)
        in_ring = sum(size > 0 for size in shares.values())
        if points_per_name(in_ring) != self._ring.points_per_name:
            self._ring = Ring(in_ring)
            entering_ring = {name for name, size in shares.items() if size}
        else:
            yield from self._change_ring(self._ring.remove, leaving)
            entering_ring = entering
        # Each point concerns about as many buckets as one name has; many points are compared with every bucket.
        per_point = 2 + len(self._place) * self._ring.points_per_name // max(len(self._ring), 1)
        if not entering_ring:
            pass
        elif len(self._ring) and len(entering_ring) * self._ring.points_per_name * per_point < len(self._place):
            yield from self._queue_taken_positions(entering_ring)
            yield from self._change_ring(self._ring.add, entering_ring)
        else:
            yield from self._change_ring(self._ring.add, entering_ring)
            yield from self._queue_changed_positions()
        self._roomy |= entering
        for name, size in changed.items():
            if name not in leaving and name not in entering:
                self._resize(name, size)

    def _change_ring(self, change: Callable[[Collection[str]], None], names: Collection[str]) -> Iterator[None]:
        """Add or remove the points of names, some names at a time."""
        waiting = list(names)
        for first in range(0, len(waiting), RING_NAMES):
            change(waiting[first : first + RING_NAMES])
            if first + RING_NAMES < len(waiting):
                yield

    def _queue_taken_positions(self, entering: Iterable[str]) -> Iterator[None]:
        """Queue the buckets that have tried a position which is about to belong to one of these names."""
        pause = self.steps + PAUSE_STEPS
        for point in (point for name in entering for point in self._ring.points_of(name)):
            start, owner = self._ring.before(point), self._ring.owner(point)
            for bucket in [*self._placed.get(owner, ()), *self._refused.get(owner, ())]:
                tried = len(self._tried[bucket]) + 1
                if any(_between(start, at, point) for at in _positions(bucket)[:tried]):
                    self._queue(bucket)
                self.steps += 1
            if self.steps >= pause:
                yield
                pause = self.steps + PAUSE_STEPS

    def _queue_changed_positions(self) -> Iterator[None]:
        """Queue the buckets that have tried a position which belongs to another name now."""
        pause = self.steps + PAUSE_STEPS
        for bucket, place in enumerate(self._place):
            tried = [*self._tried[bucket], place] if place is not None else self._tried[bucket]
            self.steps += len(tried)
            if not tried or any(map(ne, map(self._ring.owner, _positions(bucket)), tried)):
                self._queue(bucket)
            if self.steps >= pause:
                yield
                pause = self.steps + PAUSE_STEPS

    def _resize(self, name: str, size: int) -> None:
        placed = self._placed.setdefault(name, [])
        for bucket in placed[size:]:
            self._queue(bucket)
        if len(placed) < size:
            self._roomy.add(name)
            for bucket in self._refused.get(name, ()):
                self._queue(bucket)
        else:
            self._roomy.discard(name)

    def _queue(self, bucket: int) -> None:
        if bucket not in self._queued:
            self._queued.add(bucket)
            self._due.append(bucket)
            self._before.setdefault(bucket, self.owner(bucket))

    def _compute(self) -> Iterator[None]:
        heapify(self._due)
        pause = self.steps + PAUSE_STEPS
        while self._due:
            bucket = heappop(self._due)
            self._queued.discard(bucket)
            self._compute_one(bucket)
            if self.steps >= pause:
                yield
                pause = self.steps + PAUSE_STEPS

    def _compute_one(self, bucket: int) -> None:
        """Find the place of a bucket, after those of all buckets with smaller numbers were found."""
        for name in self._tried[bucket]:
            if name in self._refused:
                self._refused[name].discard(bucket)
        tried: list[str] = []
        found = None
        if len(self._ring):
            for position in _positions(bucket)[:PROBES]:
                self.steps += 1
                name = self._ring.owner(position)
                if bisect_left(self._placed.get(name, ()), bucket) < self._shares[name]:
                    found = name
                    break
                tried.append(name)
                self._refused.setdefault(name, set()).add(bucket)
        self._tried[bucket] = tried
        self._move(bucket, found)

    def _move(self, bucket: int, name: str | None) -> None:
        before = self._place[bucket]
        self._place[bucket] = name
        if name is None:
            self._homeless.add(bucket)
        else:
            self._homeless.discard(bucket)
        if before is not None and before != name and before in self._placed:
            placed = self._placed[before]
            del placed[bisect_left(placed, bucket)]
            if len(placed) < self._shares[before]:
                self._roomy.add(before)
                for other in self._refused.get(before, ()):
                    if other > bucket:
                        self._push(other)
        if name is not None and (before != name or bucket not in self._placed.get(name, ())):
            self._enter(bucket, name)

    def _enter(self, bucket: int, name: str) -> None:
        placed = self._placed.setdefault(name, [])
        insort(placed, bucket)
        for other in placed[self._shares[name] :]:
            self._push(other)
        if len(placed) >= self._shares[name]:
            self._roomy.discard(name)

    def _push(self, bucket: int) -> None:
        if bucket not in self._queued:
            self._queued.add(bucket)
            heappush(self._due, bucket)
            self._before.setdefault(bucket, self.owner(bucket))

    def _share_leftovers(self) -> None:
        """Give each bucket without a place to the next consumer that has room, by the position of the bucket."""
        for bucket in self._leftover.keys() | self._homeless:
            self._before.setdefault(bucket, self._place[bucket] or self._leftover.get(bucket))
        room = {name: self._shares[name] - len(self._placed.get(name, ())) for name in self._roomy}
        places = sorted((self._seeds[name], name) for name, left in room.items() if left > 0)
        self._leftover = {}
        for bucket in sorted(self._homeless) if places else ():
            self.steps += 1
            place = bisect_left(places, (_positions(bucket)[PROBES], "")) % len(places)
            name = places[place][1]
            self._leftover[bucket] = name
            room[name] -= 1
            if not room[name]:
                del places[place]


@lru_cache(maxsize=limits.BUCKETS_MAX)
def _positions(bucket: int) -> tuple[int, ...]:
    """Where a bucket looks for its consumer: `PROBES` positions, and one for the buckets that are left."""
    seed = bucket * _BUCKET_SEEDS & ((1 << 64) - 1)
    return tuple(position_of(seed, number) for number in range(PROBES + 1))


def _between(start: int, position: int, end: int) -> bool:
    """Whether a position is after `start` and not after `end`, around the ring."""
    return start < position <= end if start < end else position > start or position <= end
