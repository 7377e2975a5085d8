"""Which consumer is at which broker: each broker publishes its own consumers, and reads those of the others.

A broker spreads its consumers over several records, so that a change rewrites only a small part of them, and no record
becomes too large for etcd.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields

from dejaq.broker.assignment.assignment import Seat

PREFIX = "seats/"
# The records of releases before 0.3: one for each broker.
OLD_PREFIX = "clients/"
# Over how many records a broker spreads its consumers: 10,000 consumers are about 150 in each, or 15 KB.
RECORDS = 64

# A consumer's topic, by its number, and its name.
ConsumerKey = tuple[int, str]


@dataclass(frozen=True, slots=True)
class Place:
    """A consumer at a broker, with a seat if leases flow to it.

    Of two consumers with one name, the one with the larger stamp is live.
    """

    broker: str
    stamp: int
    seat: Seat | None


# topic number -> consumer's name -> (stamp, seat)
Published = Mapping[int, Mapping[str, tuple[int, Seat | None]]]


def record_of(key: ConsumerKey) -> int:
    """The number of the record that a consumer is in."""
    number, name = key
    return zlib.crc32(name.encode(), number) % RECORDS


def record_key(broker: str, record: int) -> str:
    """The key of a broker's record."""
    return f"{PREFIX}{broker}/{record}"


def broker_of(key: str) -> str:
    """The broker that wrote the record of this key."""
    if key.startswith(OLD_PREFIX):
        return key.removeprefix(OLD_PREFIX)
    return key.removeprefix(PREFIX).rpartition("/")[0]


def encode(consumers: Published) -> bytes:
    """A record of some of a broker's consumers."""
    return json.dumps(
        {
            "consumers": {
                str(topic): {
                    name: [stamp, None if seat is None else astuple(seat)[1:]] for name, (stamp, seat) in named.items()
                }
                for topic, named in consumers.items()
            },
        }
    ).encode()


def _places(broker: str, value: bytes) -> dict[ConsumerKey, Place]:
    return {
        # A broker of an older release publishes fewer fields, one of a newer release more.
        (int(topic), name): Place(broker, stamp, None if seat is None else Seat(name, *seat[: len(fields(Seat)) - 1]))
        for topic, named in json.loads(value)["consumers"].items()
        for name, (stamp, seat) in named.items()
    }


class Seats:
    """The places of every consumer in the cluster."""

    def __init__(self) -> None:
        # What each record says, by the key of the record.
        self._records: dict[str, dict[ConsumerKey, Place]] = {}
        # The places of each consumer, by the key of the record; almost always one.
        self._found: dict[ConsumerKey, dict[str, Place]] = {}
        self._merged: dict[int, dict[str, Place]] = {}
        self._counts: Counter[tuple[int, str]] = Counter()

    def take(self, key: str, value: bytes | None) -> set[ConsumerKey]:
        """Read the record of a key, None when it is gone; returns the consumers that have changed."""
        before = self._records.pop(key, {})
        after = {} if value is None else _places(broker_of(key), value)
        if value is not None:
            self._records[key] = after
        changed = {one for one in before.keys() | after.keys() if before.get(one) != after.get(one)}
        for one in changed:
            found = self._found.setdefault(one, {})
            found.pop(key, None)
            if one in after:
                found[key] = after[one]
            self._merge(one, found)
        return changed

    def _merge(self, one: ConsumerKey, found: Mapping[str, Place]) -> None:
        number, name = one
        named = self._merged.setdefault(number, {})
        before = named.pop(name, None)
        if before is not None:
            self._counts[number, before.broker] -= 1
            if not self._counts[number, before.broker]:
                del self._counts[number, before.broker]
        if found:
            place = named[name] = min(found.values(), key=lambda place: (-place.stamp, place.broker))
            self._counts[number, place.broker] += 1
        else:
            del self._found[one]
        if not named:
            del self._merged[number]

    def of(self, topic: int) -> Mapping[str, Place]:
        """The places of a topic's consumers, by their names."""
        return self._merged.get(topic, {})

    def count(self, topic: int, broker: str) -> int:
        """How many consumers of a topic a broker has."""
        return self._counts[topic, broker]
