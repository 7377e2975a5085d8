"""Which consumer sits at which broker: each broker tells its own, and everybody deals from the sum."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, fields

from dejaq.broker.carrier.dealer import Seat

PREFIX = "clients/"


@dataclass(frozen=True, slots=True)
class Place:
    """A consumer at a broker, with a seat if leases flow to it.

    Of two with one name the one with the larger stamp is the one that lives.
    """

    broker: str
    stamp: int
    seat: Seat | None


# topic number -> consumer's name -> (stamp, seat)
Told = Mapping[int, Mapping[str, tuple[int, Seat | None]]]


def encode(consumers: Told, producers: Mapping[int, Iterable[str]]) -> bytes:
    """The record of one broker's clients."""
    return json.dumps(
        {
            "consumers": {
                str(topic): {
                    name: [stamp, None if seat is None else astuple(seat)[1:]] for name, (stamp, seat) in named.items()
                }
                for topic, named in consumers.items()
            },
            "producers": {str(topic): sorted(set(groups)) for topic, groups in producers.items()},
        }
    ).encode()


def _places(broker: str, value: bytes) -> dict[int, dict[str, Place]]:
    return {
        int(topic): {
            # A broker of an older release tells less, one of a newer release more.
            name: Place(broker, stamp, None if seat is None else Seat(name, *seat[: len(fields(Seat)) - 1]))
            for name, (stamp, seat) in named.items()
        }
        for topic, named in json.loads(value)["consumers"].items()
    }


class Seats:
    """The places of every consumer in the cluster."""

    def __init__(self) -> None:
        self._told: dict[str, dict[int, dict[str, Place]]] = {}
        self._merged: dict[int, dict[str, Place]] = {}

    def tell(self, broker: str, value: bytes | None) -> set[int]:
        """Take what a broker told, None when it is gone; gives the topics whose places are others now."""
        before = self._told.pop(broker, {})
        after = {} if value is None else _places(broker, value)
        if value is not None:
            self._told[broker] = after
        topics = {topic for topic in before.keys() | after.keys() if before.get(topic) != after.get(topic)}
        for topic in topics:
            self._merge(topic)
        return topics

    def _merge(self, topic: int) -> None:
        merged: dict[str, Place] = {}
        for broker in sorted(self._told):
            for name, place in self._told[broker].get(topic, {}).items():
                if name not in merged or place.stamp > merged[name].stamp:
                    merged[name] = place
        if merged:
            self._merged[topic] = merged
        else:
            self._merged.pop(topic, None)

    def of(self, topic: int) -> Mapping[str, Place]:
        """The places of a topic's consumers, by their names."""
        return self._merged.get(topic, {})
