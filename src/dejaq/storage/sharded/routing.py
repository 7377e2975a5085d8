"""Finds the shards that a request concerns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from dejaq.domain.dead_letter import id_before
from dejaq.domain.headers import encode_headers
from dejaq.domain.ids import bucket_of, parse_generated
from dejaq.domain.message import Message, Status
from dejaq.domain.topic import Topic
from dejaq.errors import Code
from dejaq.storage.sharded.placement import is_whole
from dejaq.storage.sharded.shards import Ask, Shards

T = TypeVar("T")


class Router:
    """Finds shards by bucket and by id."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    def places(self, topic: Topic) -> list[int]:
        """The shards that may have messages of a topic."""
        return [0] if is_whole(topic) else list(range(len(self._shards)))

    def everywhere(self, topic: Topic, call: Ask[T]) -> dict[int, Ask[T]]:
        """A call to each shard that may have messages of a topic."""
        return dict.fromkeys(self.places(topic), call)

    def groups(self, topic: Topic, buckets: Sequence[int]) -> dict[int, list[int]]:
        """Buckets by shard, without those that are being moved from one shard to another."""
        found: dict[int, list[int]] = {}
        now = self._shards.map
        if len(now.shards) == 1:
            return {0: list(buckets)} if buckets else {}
        for bucket in buckets:
            if not now.frozen(topic, bucket):
                found.setdefault(now.owner(topic, bucket), []).append(bucket)
        return found

    def twin(self, topic: Topic, message_id: str) -> int | None:
        """The shard of an id if it is a generated id; None when it cannot be one."""
        generated = parse_generated(message_id)
        if generated is None or generated[1] >= topic.settings.buckets:
            return None
        return self._shards.map.owner(topic, generated[1])

    def home(self, topic: Topic, message_id: str) -> int:
        """The shard of an id if it is a natural id."""
        return self._shards.map.owner(topic, bucket_of(message_id, topic.settings.buckets))

    async def rows_of(self, topic: Topic, ids: Sequence[str]) -> dict[int, list[int]]:
        """The rows of a column of ids by shard. Of two messages with the same id text, the natural one counts."""
        found: dict[int, list[int]] = {}
        if is_whole(topic) or len(self._shards) == 1:
            return {0: list(range(len(ids)))} if ids else {}
        doubtful: dict[int, list[int]] = {}
        for row, message_id in enumerate(ids):
            home, twin = self.home(topic, message_id), self.twin(topic, message_id)
            if twin is None or twin == home:
                found.setdefault(home, []).append(row)
            else:
                doubtful.setdefault(home, []).append(row)
        for home, rows in doubtful.items():
            there = await self._there(home, topic, {ids[row] for row in rows}, listed=True)
            for row in rows:
                place = home if ids[row] in there else self.twin(topic, ids[row])
                assert place is not None
                found.setdefault(place, []).append(row)
        return {place: sorted(rows) for place, rows in found.items()}

    async def _there(self, place: int, topic: Topic, ids: Iterable[str], *, listed: bool = False) -> set[str]:
        return await self._shards.ask(place, lambda shard: shard.there(topic, list(ids), listed=listed))

    async def find(self, place: int, topic: Topic, message_id: str) -> Message | None:
        """A message on one shard."""
        (found,) = await self._get(place, topic, [message_id], 0)
        return found

    async def _get(self, place: int, topic: Topic, ids: Sequence[str], now: int) -> list[Message | None]:
        return await self._shards.ask(place, lambda shard: shard.get(topic, ids, now))

    async def taken_before(self, topic: Topic, target: Topic, ids: Sequence[str], now: int) -> dict[str, Code]:
        """The outcomes of dead letters whose id is taken in the target, on another shard than theirs."""
        if is_whole(topic) and is_whole(target):
            return {}
        found: dict[str, Code] = {}
        asked: dict[int, dict[str, str]] = {}
        standing: dict[str, bool] = {}
        for place, rows in (await self.rows_of(topic, ids)).items():
            some = list(dict.fromkeys(ids[row] for row in rows))
            messages = await self._get(place, topic, some, now)
            for message_id, message in zip(some, messages, strict=True):
                if message is None:
                    continue
                before = id_before(message_id, encode_headers(dict(message.headers)))
                standing[message_id] = message.status(now) is Status.PROCESSING
                twin, home = self.twin(target, before), self.home(target, before)
                for there in {home, home if twin is None else twin} - {place}:
                    asked.setdefault(there, {})[message_id] = before
        for place, befores in asked.items():
            there_ids = await self._there(place, target, befores.values())
            for message_id, before in befores.items():
                if before in there_ids:
                    found[message_id] = Code.LEASED if standing[message_id] else Code.ID_TAKEN
        return found
