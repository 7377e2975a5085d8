"""Which consumers of a topic lease from which buckets: the owner of each bucket, and who helps it.

A change costs as much as moves. It is computed in steps of at most a millisecond, and what the consumers lease from
changes only after the last step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from dejaq.broker.assignment.assignment import PAUSE_STEPS, Assignment, Seat
from dejaq.broker.assignment.lending import Lending

# After so many quick steps the computation pauses.
QUICK_STEPS = 200


def paused(steps: Iterable[None]) -> Iterator[None]:
    """Do quick steps, with a pause after some of them."""
    for number, _ in enumerate(steps, 1):
        if number % QUICK_STEPS == 0:
            yield


class Seating:
    """The owner and the helper of each bucket of one topic."""

    def __init__(self, buckets: int) -> None:
        self._assignment = Assignment(buckets)
        self._lending = Lending()
        self._weights: dict[str, int] = {}
        # What the consumers lease from now: helpers by bucket, and buckets by helper.
        self._helpers: dict[int, str] = {}
        self._lent: dict[str, set[int]] = {}
        self._touched: set[str] = set()

    @property
    def steps(self) -> int:
        """How many steps of work were done so far."""
        return self._assignment.steps + self._lending.steps

    def holders(self, bucket: int) -> list[str]:
        """The consumers that lease from a bucket, its owner first."""
        owner, helper = self._assignment.owner(bucket), self._helpers.get(bucket)
        return [name for name in (owner, helper) if name is not None]

    def own(self, name: str) -> list[int]:
        """The buckets that a consumer owns."""
        return self._assignment.of(name)

    def lent(self, name: str) -> list[int]:
        """The buckets of others that a consumer also leases from."""
        return sorted(self._lent.get(name, ()))

    def change(self, seats: Mapping[str, Seat], gone: Iterable[str]) -> Iterator[None]:
        """Apply new or changed seats, and the names of those that are gone, with a pause after each step."""
        gone = [name for name in gone if self._weights.pop(name, None) is not None]
        weights = {name: seat.weight for name, seat in seats.items() if self._weights.get(name) != seat.weight}
        self._weights |= weights
        yield from paused(map(self._lending.put, seats.values()))
        yield from paused(map(self._lending.remove, gone))
        if weights or gone:
            yield from self._assignment.change(weights, gone)
        moved = self._assignment.take_moved()
        for before, after in moved.values():
            self._touched.update(name for name in (before, after) if name is not None)
        for number, (bucket, (_, after)) in enumerate(moved.items(), 1):
            self._lend(bucket, after)
            if number % QUICK_STEPS == 0:
                yield
        steps = 0
        for owner in self._lending.take_changed():
            for bucket in self._assignment.of(owner):
                self._lend(bucket, owner)
                steps += 1
            if steps >= PAUSE_STEPS:
                steps = 0
                yield

    def take_touched(self) -> set[str]:
        """The consumers whose buckets have changed since the last call."""
        touched, self._touched = self._touched, set()
        return touched

    def _lend(self, bucket: int, owner: str | None) -> None:
        """Have the right consumer help with a bucket."""
        before = self._helpers.pop(bucket, None)
        after = None if owner is None else self._lending.helper(owner, bucket)
        if after is not None:
            self._helpers[bucket] = after
        if before == after:
            return
        if before is not None:
            self._touched.add(before)
            self._lent[before].discard(bucket)
            if not self._lent[before]:
                del self._lent[before]
        if after is not None:
            self._touched.add(after)
            self._lent.setdefault(after, set()).add(bucket)
