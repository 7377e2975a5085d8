"""Which shard has which bucket: a pure function of the shards' names, and of the progress of a move."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Protocol, runtime_checkable

from dejaq.domain.naming.topic_name import is_hidden
from dejaq.domain.topic import Topic, TopicKind
from dejaq.errors import Code, error_of

# A bucket of a topic by number; comparing it with the progress of a move shows whether the bucket has moved.
Unit = tuple[int, int]
NOTHING: Unit = (0, 0)


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """A shard: its permanent name, the number that its versions contain, and its address."""

    name: str
    ordinal: int
    dsn: str = field(repr=False)


def is_whole(topic: Topic) -> bool:
    """Whether all of a topic is on the first shard, because it needs one order or one commit over
    all of its messages.
    """
    settings = topic.settings
    one_order = settings.buckets == 1 or settings.kind is not TopicKind.TIMELINE
    return one_order or settings.expires or is_hidden(topic.name)


@dataclass(frozen=True, slots=True)
class ShardMap:
    """The shards, the first of which has the topics; and, while a shard is added or removed, the progress of the move.

    Buckets move in the order of (topic, bucket): those up to `done` have moved, those after it up to `moving` are being
    moved, and the others have not moved.
    """

    shards: tuple[ShardInfo, ...]
    version: int = 1
    # The shard that is added or removed; empty for none.
    changing: str = ""
    leaving: bool = False
    done: Unit = NOTHING
    moving: Unit = NOTHING
    # Whether the moving messages have arrived, and only need to be removed from the old shard.
    copied: bool = False
    _owners: dict[Unit, tuple[int, int]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def first(self) -> ShardInfo:
        """The shard that has the topics and the topics that are not divided."""
        return self.shards[0]

    def named(self, name: str) -> ShardInfo | None:
        """The shard with this name."""
        return next((shard for shard in self.shards if shard.name == name), None)

    def owner(self, topic: Topic, bucket: int) -> int:
        """The index in `shards` of the shard that has a bucket."""
        if len(self.shards) == 1 or is_whole(topic):
            return 0
        before, after = self._ends(topic.number, bucket)
        return after if (topic.number, bucket) <= self.done else before

    def frozen(self, topic: Topic, bucket: int) -> bool:
        """Whether a bucket is being moved now."""
        if not self.done < (topic.number, bucket) <= self.moving or is_whole(topic):
            return False
        before, after = self._ends(topic.number, bucket)
        return before != after

    def moves(self, topic: Topic, bucket: int) -> tuple[int, int] | None:
        """The old and the new shard of a bucket in the present move; None when the bucket does not move."""
        if not self.changing or is_whole(topic):
            return None
        before, after = self._ends(topic.number, bucket)
        return (before, after) if before != after else None

    def owner_before(self, topic: Topic, bucket: int) -> int:
        """The shard that had a bucket before the present move."""
        return self._ends(topic.number, bucket)[0]

    def _ends(self, number: int, bucket: int) -> tuple[int, int]:
        """The shards that have a bucket before and after the present move."""
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
        """The map in the form that the brokers share."""
        fields = {
            "version": self.version,
            "shards": [{"name": one.name, "ordinal": one.ordinal, "dsn": one.dsn} for one in self.shards],
            "changing": self.changing,
            "leaving": self.leaving,
            "done": self.done,
            "moving": self.moving,
            "copied": self.copied,
        }
        return json.dumps(fields, sort_keys=True).encode()

    @classmethod
    def decode(cls, value: bytes) -> ShardMap:
        """The map that `encode` wrote."""
        fields = json.loads(value)
        return cls(
            shards=tuple(ShardInfo(one["name"], one["ordinal"], one["dsn"]) for one in fields["shards"]),
            version=fields["version"],
            changing=fields["changing"],
            leaving=fields["leaving"],
            done=tuple(fields["done"]),
            moving=tuple(fields["moving"]),
            copied=fields["copied"],
        )

    def next(self, **changes: object) -> ShardMap:
        """The map that follows this one."""
        return replace(self, version=self.version + 1, **changes)  # type: ignore[arg-type]


@runtime_checkable
class Spread(Protocol):
    """A storage whose buckets are placed by a map."""

    @property
    def map(self) -> ShardMap:
        """The map in use."""

    async def follow(self, fresh: ShardMap) -> None:
        """Use another map from now on; returns when no operation uses the old map any more."""

    async def kept(self) -> dict[str, list[str]]:
        """The shards of the storage according to each shard that answers, by its name."""


def _weight(name: str, number: int, bucket: int) -> bytes:
    return blake2b(f"{number}/{bucket}/{name}".encode(), digest_size=8).digest()


def first_map(dsns: dict[str, str]) -> ShardMap:
    """The map of shards that contain nothing yet."""
    if not dsns:
        raise error_of(Code.INVALID_ARGUMENT, "a storage of shards needs at least one shard")
    return ShardMap(tuple(ShardInfo(name, ordinal, dsn) for ordinal, (name, dsn) in enumerate(dsns.items())))
