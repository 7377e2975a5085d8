"""Which consumers with free credit also lease from the buckets of a consumer without: pure, the same at every broker.

The consumers of a topic have a fixed order. A consumer without free credit is helped by the next few consumers in this
order that have free credit, if possible by those in other racks, and its buckets are spread over them. So a consumer
that gets or loses its free credit concerns only the consumers a little before it in the order.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from heapq import nsmallest

from dejaq.broker.assignment.assignment import Seat
from dejaq.broker.assignment.ring import mix, seed_of

# How many consumers help one.
HELPERS = 4
# Among how many of the next consumers with free credit helpers in another rack are looked for first.
NEXT_FREE = 16

_Place = tuple[int, str]


class Lending:
    """The consumers of one topic with and without free credit."""

    def __init__(self) -> None:
        self._seats: dict[str, Seat] = {}
        self._free: list[_Place] = []
        self._free_in_rack: dict[str, list[_Place]] = {}
        self._sharing: list[_Place] = []
        # Those whose helpers are further away than the next consumers with free credit.
        self._far: set[str] = set()
        self._helpers: dict[str, tuple[str, ...]] = {}
        self._due: set[str] = set()
        # How many consumers were looked at so far.
        self.steps = 0

    def of(self, name: str) -> tuple[str, ...]:
        """The consumers that help this one; none while it has free credit."""
        return self._helpers.get(name, ())

    def helper(self, name: str, bucket: int) -> str | None:
        """The consumer that also leases from a bucket of this one."""
        helpers = self._helpers.get(name, ())
        return helpers[mix(bucket) % len(helpers)] if helpers else None

    def put(self, seat: Seat) -> None:
        """Add a consumer, or note that it has another state or rack."""
        known = self._seats.get(seat.name)
        if known is None or (known.sharing, known.rack) != (seat.sharing, seat.rack):
            self.remove(seat.name)
            self._seats[seat.name] = seat
            place = (seed_of(seat.name), seat.name)
            if seat.sharing:
                insort(self._sharing, place)
                self._due.add(seat.name)
            else:
                insort(self._free, place)
                insort(self._free_in_rack.setdefault(seat.rack, []), place)
                self._concerned(place)

    def remove(self, name: str) -> None:
        """Forget a consumer."""
        seat = self._seats.pop(name, None)
        if seat is None:
            return
        place = (seed_of(name), name)
        if seat.sharing:
            del self._sharing[bisect_left(self._sharing, place)]
            self._due.add(name)
            self._far.discard(name)
        else:
            self._concerned(place)
            del self._free[bisect_left(self._free, place)]
            same_rack = self._free_in_rack[seat.rack]
            del same_rack[bisect_left(same_rack, place)]
            if not same_rack:
                del self._free_in_rack[seat.rack]

    def _concerned(self, place: _Place) -> None:
        """Note the consumers that look at a place among the consumers with free credit."""
        self._due |= self._far
        if len(self._free) <= NEXT_FREE + 1:
            self._due.update(name for _, name in self._sharing)
            return
        start = self._free[(bisect_left(self._free, place) - NEXT_FREE - 1) % len(self._free)]
        first, last = bisect_left(self._sharing, start), bisect_right(self._sharing, place)
        found = self._sharing[first:last] if start < place else [*self._sharing[first:], *self._sharing[:last]]
        self._due.update(name for _, name in found)

    def take_changed(self) -> Iterator[str]:
        """Compute the helpers of the consumers that the changes concern; gives those whose helpers have changed."""
        while self._due:
            name = self._due.pop()
            seat = self._seats.get(name)
            helpers = self._find(seat) if seat is not None and seat.sharing else ()
            if helpers != self._helpers.get(name, ()):
                if helpers:
                    self._helpers[name] = helpers
                else:
                    self._helpers.pop(name, None)
                yield name

    def _find(self, owner: Seat) -> tuple[str, ...]:
        place = (seed_of(owner.name), owner.name)
        near = self._next(self._free, place, NEXT_FREE)
        found = near
        if owner.rack:
            found = [one for one in near if self._seats[one[1]].rack != owner.rack]
            self._far.discard(owner.name)
            if not found and len(self._free) > len(near):
                self._far.add(owner.name)
                racks = (places for rack, places in self._free_in_rack.items() if rack != owner.rack)
                beyond = [one for places in racks for one in self._next(places, place, HELPERS)]
                found = nsmallest(HELPERS, beyond, key=lambda one: (one < place, one))
        return tuple(name for _, name in (found or near)[:HELPERS])

    def _next(self, places: list[_Place], place: _Place, count: int) -> list[_Place]:
        """The next places after this one, around the end."""
        first = bisect_left(places, place)
        found = places[first : first + count]
        found += places[: min(count - len(found), first)]
        self.steps += len(found)
        return found
