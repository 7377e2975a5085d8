"""Which shard has which bucket: a pure function of the shards' names, and of how far a change of them has come."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Protocol, runtime_checkable

from dejaq.domain.topic import Topic, TopicKind
from dejaq.errors import Code, error_of

# A bucket of a topic by number; compared, it says what a move has done and what not.
Unit = tuple[int, int]
NOTHING: Unit = (0, 0)


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """A shard: its name for ever, the number that its versions carry, and where it is."""

    name: str
    ordinal: int
    dsn: str = field(repr=False)


def is_whole(topic: Topic) -> bool:
    """Whether all of a topic is on the first shard: what needs one order or one commit over all of its messages."""
    settings = topic.settings
    return settings.buckets == 1 or settings.kind is not TopicKind.TIMELINE or settings.expires or "/" in topic.name


@dataclass(frozen=True, slots=True)
class ShardMap:
    """The shards, the first of which has the topics; and, while one comes or goes, how far its buckets have moved.

    Buckets move in the order of (topic, bucket): those up to `done` have moved, those behind it up to `moving` are on
    their way, and the others have not.
    """

    shards: tuple[ShardInfo, ...]
    version: int = 1
    # The shard that comes or goes; empty for none.
    changing: str = ""
    leaving: bool = False
    done: Unit = NOTHING
    moving: Unit = NOTHING
    # Whether what is on its way has arrived, and is only to be removed where it was.
    copied: bool = False
    _owners: dict[Unit, tuple[int, int]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def first(self) -> ShardInfo:
        """The shard that has the topics and what is whole."""
        return self.shards[0]

    def named(self, name: str) -> ShardInfo | None:
        """The shard of a name."""
        return next((shard for shard in self.shards if shard.name == name), None)

    def owner(self, topic: Topic, bucket: int) -> int:
        """The place among `shards` of the one that has a bucket."""
        if len(self.shards) == 1 or is_whole(topic):
            return 0
        before, after = self._ends(topic.number, bucket)
        return after if (topic.number, bucket) <= self.done else before

    def frozen(self, topic: Topic, bucket: int) -> bool:
        """Whether a bucket is on its way now."""
        if not self.done < (topic.number, bucket) <= self.moving or is_whole(topic):
            return False
        before, after = self._ends(topic.number, bucket)
        return before != after

    def moves(self, topic: Topic, bucket: int) -> tuple[int, int] | None:
        """From where to where a bucket has to move in the present change; None where it stays."""
        if not self.changing or is_whole(topic):
            return None
        before, after = self._ends(topic.number, bucket)
        return (before, after) if before != after else None

    def owner_before(self, topic: Topic, bucket: int) -> int:
        """The shard that had a bucket before the present change."""
        return self._ends(topic.number, bucket)[0]

    def _ends(self, number: int, bucket: int) -> tuple[int, int]:
        """Who has a bucket before and after the present change."""
        found = self._owners.get((number, bucket))
        if found is None:
            every = range(len(self.shards))
            rest = [place for place in every if self.shards[place].name != self.changing]
            wide, narrow = self._best(number, bucket, every), self._best(number, bucket, rest)
            found = (wide, narrow) if self.leaving else (narrow, wide)
            self._owners[number, bucket] = found
        return found

    def _best(self, number: int, bucket: int, places: Sequence[int]) -> int:
        return max(places, key=lambda place: _weight(self.shards[place].name, number, bucket))

    # Its record

    def encode(self) -> bytes:
        """The map as the brokers share it."""
        told = {
            "version": self.version,
            "shards": [{"name": one.name, "ordinal": one.ordinal, "dsn": one.dsn} for one in self.shards],
            "changing": self.changing,
            "leaving": self.leaving,
            "done": self.done,
            "moving": self.moving,
            "copied": self.copied,
        }
        return json.dumps(told, sort_keys=True).encode()

    @classmethod
    def decode(cls, value: bytes) -> ShardMap:
        """The map that `encode` wrote."""
        told = json.loads(value)
        return cls(
            shards=tuple(ShardInfo(one["name"], one["ordinal"], one["dsn"]) for one in told["shards"]),
            version=told["version"],
            changing=told["changing"],
            leaving=told["leaving"],
            done=tuple(told["done"]),
            moving=tuple(told["moving"]),
            copied=told["copied"],
        )

    def next(self, **changes: object) -> ShardMap:
        """The map that follows this one."""
        return replace(self, version=self.version + 1, **changes)  # type: ignore[arg-type]


@runtime_checkable
class Spread(Protocol):
    """A storage whose buckets are where a map says."""

    @property
    def map(self) -> ShardMap:
        """The map that it works by."""

    async def follow(self, fresh: ShardMap) -> None:
        """Work by another map from now on; returns when nothing is done by the old one any more."""

    async def kept(self) -> dict[str, list[str]]:
        """The shards that each shard was told to be one of, by its name; of those that were told and answer."""


def _weight(name: str, number: int, bucket: int) -> bytes:
    return blake2b(f"{number}/{bucket}/{name}".encode(), digest_size=8).digest()


def first_map(dsns: dict[str, str]) -> ShardMap:
    """The map of shards that hold nothing yet."""
    if not dsns:
        raise error_of(Code.INVALID_ARGUMENT, "a store of shards needs one at least")
    return ShardMap(tuple(ShardInfo(name, ordinal, dsn) for ordinal, (name, dsn) in enumerate(dsns.items())))
