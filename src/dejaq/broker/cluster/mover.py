"""Adds a shard to the storage of a running cluster: the buckets that are its move to it, a few at a time.

For each few: the map says that they are on their way, and every broker that lives has seen it; the server refuses
writes to them where they are; they are copied; the map says that they are copied; they are removed where they were; the
map says that they have moved. The map is the only memory: whoever begins again goes on where the last one was killed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from dejaq.broker.cluster import member as members_
from dejaq.broker.cluster.shards import CLAIM, MAP, SEEN
from dejaq.crashpoints import crash_at
from dejaq.domain.topic import Topic
from dejaq.errors import ClusterRefused, SynchronizationError
from dejaq.storage.postgres import moving
from dejaq.storage.postgres.change import places_of
from dejaq.storage.postgres.shard import STRIDE, PostgresShard
from dejaq.storage.postgres.store import PATIENCE_MS_DEFAULT
from dejaq.storage.sharded.placement import NOTHING, ShardInfo, ShardMap, Unit
from dejaq.storage.sharded.shards import MakeShard
from dejaq.synchronization.base import TTL_SECONDS_DEFAULT, Record, Synchronization
from dejaq.timekeeper.clock import Clock

log = logging.getLogger(__name__)

CLAIM_SECONDS = TTL_SECONDS_DEFAULT + 3.0
_POLL_SECONDS = 0.02
# What moves at once: so many messages, unless one bucket has more, and usually so many buckets.
ROWS_AT_ONCE = 5_000
UNITS_AT_ONCE = 64
LAST: Unit = (2**31 - 1, 0)


@dataclass(slots=True)
class Progress:
    """How far a move has come."""

    buckets: int = 0
    moved: int = 0
    messages: int = 0


@dataclass(slots=True)
class Mover:
    """Moves the buckets of one storage. `grace` is how long after the last move a late writer is still refused."""

    synchronization: Synchronization
    make: MakeShard
    clock: Clock
    tell: Callable[[Progress], None] = lambda progress: None
    grace: float = 2 * PATIENCE_MS_DEFAULT / 1_000
    # How many buckets move at once, at most.
    at_once: int = UNITS_AT_ONCE
    progress: Progress = field(default_factory=Progress)
    _shards: dict[str, PostgresShard] = field(default_factory=dict)
    _map: ShardMap | None = None
    _revision: int = 0

    @property
    def map(self) -> ShardMap:
        """The map as it was last written or read."""
        assert self._map is not None
        return self._map

    async def add(self, name: str, dsn: str) -> Progress:
        """Add a shard, or go on with adding it; raises CLUSTER_REFUSED when it cannot be added."""
        record = await self.synchronization.get(MAP)
        if record is None:
            raise ClusterRefused("no broker has served this cluster yet; start one, or give all shards to the first")
        await self._claim(name)
        try:
            self._take(await self.synchronization.get(MAP) or record)
            await self._begin(name, dsn)
            await self._open()
            await self._move_all()
            await asyncio.sleep(self.grace if self.progress.moved else 0)
            for shard in self._shards.values():
                await moving.freeze(shard, [])
            return self.progress
        finally:
            for shard in self._shards.values():
                await shard.close()
            await self.synchronization.remove(CLAIM)

    async def rescue(self) -> None:
        """Finish only the few that are on their way, in the place of a mover that is gone."""
        if await self.synchronization.put(CLAIM, b"rescue", expected=0, bound=True) is None:
            return
        try:
            record = await self.synchronization.get(MAP)
            if record is not None:
                self._take(record)
                if self.map.moving > self.map.done:
                    await self._open()
                    await self._move_some()
        finally:
            for shard in self._shards.values():
                await shard.close()
            await self.synchronization.remove(CLAIM)

    async def _claim(self, name: str) -> None:
        """Be the only one who moves anything; the claim of one that was killed ends by itself."""
        loop = asyncio.get_running_loop()
        until = loop.time() + CLAIM_SECONDS
        while await self.synchronization.put(CLAIM, name.encode(), expected=0, bound=True) is None:
            if loop.time() > until:
                raise ClusterRefused("a shard is being added by another process already")
            await asyncio.sleep(_POLL_SECONDS)

    # The map

    def _take(self, record: Record) -> None:
        self._map, self._revision = ShardMap.decode(record.value), record.revision

    async def _put(self, fresh: ShardMap) -> None:
        """Write the next map, and wait until every broker that lives has seen it."""
        record = await self.synchronization.put(MAP, fresh.encode(), expected=self._revision)
        if record is None:
            raise ClusterRefused("the map of the shards was changed by another; begin again")
        self._take(record)
        while True:
            members = [one.key.removeprefix(members_.PREFIX) for one in await self._under(members_.PREFIX)]
            seen = {one.key.removeprefix(SEEN): int(one.value) for one in await self._under(SEEN)}
            if all(seen.get(member, 0) >= fresh.version for member in members):
                return
            await asyncio.sleep(_POLL_SECONDS)

    async def _under(self, prefix: str) -> list[Record]:
        while True:
            try:
                return await self.synchronization.under(prefix)
            except SynchronizationError as error:
                log.info("the brokers are asked again: %s", error)

    async def _begin(self, name: str, dsn: str) -> None:
        now = self.map
        known = now.named(name)
        if now.changing and now.changing != name:
            raise ClusterRefused(
                f"shard {now.changing!r} is only half added; finish that first: dejaq storage add-shard {now.changing}"
            )
        if known is not None:
            if not now.changing:
                raise ClusterRefused(f"shard {name!r} is one of the storage already")
            return
        ordinal = max(shard.ordinal for shard in now.shards) + 1
        if ordinal >= STRIDE:
            raise ClusterRefused(f"a storage has at most {STRIDE} shards")
        info = ShardInfo(name, ordinal, dsn)
        # Looked at before anybody is told of it.
        shard = self.make(info)
        await shard.open(self.clock.now_ms())
        try:
            if await shard.topics():
                raise ClusterRefused(f"the store at {shard.address} holds topics; a new shard must be empty")
        finally:
            await shard.close()
        await self._put(now.next(shards=(*now.shards, info), changing=name, leaving=False, done=NOTHING))

    # The buckets

    async def _open(self) -> None:
        for info in self.map.shards:
            shard = self.make(info)
            await shard.open(self.clock.now_ms())
            self._shards[info.name] = shard

    def _shard(self, place: int) -> PostgresShard:
        return self._shards[self.map.shards[place].name]

    async def _topics(self) -> list[Topic]:
        topics = await self._shard(0).topics()
        return sorted(topics, key=lambda topic: topic.number)

    def _units(self, topics: list[Topic], behind: Unit, up_to: Unit = LAST) -> Iterator[tuple[Topic, int]]:
        """The buckets that must move, in their order."""
        for topic in topics:
            for bucket in range(topic.settings.buckets):
                if behind < (topic.number, bucket) <= up_to and self.map.moves(topic, bucket) is not None:
                    yield topic, bucket

    async def _move_all(self) -> None:
        if self.map.moving > self.map.done:
            # Somebody was killed here.
            await self._move_some()
        for source in range(len(self.map.shards)):
            await moving.freeze(self._shard(source), self._moved_before(source, await self._topics()))
        while self.map.changing:
            topics = await self._topics()
            units = list(self._units(topics, self.map.done))
            self.progress.buckets = self.progress.moved + len(units)
            self.tell(self.progress)
            if not units:
                # What is created from now on is where it belongs: first nobody creates, then everybody knows.
                await self._put(self.map.next(moving=LAST, copied=False))
                await self._move_some()
                await self._put(self.map.next(changing="", done=NOTHING, moving=NOTHING, copied=False))
                return
            last = await self._next_few(units)
            await self._bring_bodies(topics, last)
            await self._put(self.map.next(moving=last, copied=False))
            crash_at("mover.told")
            await self._move_some()

    async def _next_few(self, units: list[tuple[Topic, int]]) -> Unit:
        """The last of the buckets that move next."""
        rows = 0
        last: Unit = NOTHING
        for topic, bucket in units[: self.at_once]:
            source, _ = self.map.moves(topic, bucket) or (0, 0)
            rows += sum((await moving.rows_at(self._shard(source), places_of(topic, [bucket]))).values())
            if last != NOTHING and rows > ROWS_AT_ONCE:
                break
            last = (topic.number, bucket)
        return last

    def _by_ends(self, units: Iterable[tuple[Topic, int]]) -> dict[tuple[int, int], list[tuple[Topic, int]]]:
        """Buckets by from where to where they move."""
        found: dict[tuple[int, int], list[tuple[Topic, int]]] = {}
        for topic, bucket in units:
            ends = self.map.moves(topic, bucket)
            assert ends is not None
            found.setdefault(ends, []).append((topic, bucket))
        return found

    async def _bring_bodies(self, topics: list[Topic], last: Unit) -> None:
        """Bring the large bodies of what moves next while it is served where it is: they may take long."""
        for (source, target), some in self._by_ends(self._units(topics, self.map.done, last)).items():
            await moving.bring_bodies(self._shard(source), self._shard(target), _places(some), self.clock)

    async def _move_some(self) -> None:
        """Move what the map says is on its way."""
        every = await self._topics()
        units = list(self._units(every, self.map.done, self.map.moving))
        by_source = self._by_ends(units)
        if not self.map.copied:
            for (source, target), some in by_source.items():
                places = _places(some)
                # Those before stay frozen: a writer that is very late must not find them open where they were.
                await moving.freeze(self._shard(source), [*self._moved_before(source, every), *places])
                topics = {topic.number: topic for topic, _ in some}
                await self._teach(self._shard(target), topics)
                copied = await moving.copy(self._shard(source), self._shard(target), places, sorted(topics), self.clock)
                self.progress.messages += copied
                crash_at("mover.copied")
            await self._put(self.map.next(copied=True))
        for (source, _), some in by_source.items():
            await moving.remove(self._shard(source), _places(some))
            crash_at("mover.removed")
        await self._put(self.map.next(done=self.map.moving, moving=NOTHING, copied=False))
        self.progress.moved += len(units)
        self.tell(self.progress)

    async def _teach(self, target: PostgresShard, topics: Mapping[int, Topic]) -> None:
        """A topic may have been made by a broker that did not know of the new shard yet."""
        known = {topic.number for topic in await target.topics()}
        for number, topic in topics.items():
            if number not in known:
                await target.put_topic(topic)

    def _moved_before(self, source: int, topics: list[Topic]) -> list[int]:
        units = self._units(topics, NOTHING, self.map.done)
        return _places([(topic, bucket) for topic, bucket in units if self.map.owner_before(topic, bucket) == source])


def _places(units: list[tuple[Topic, int]]) -> list[int]:
    return [place for topic, bucket in units for place in places_of(topic, [bucket])]
