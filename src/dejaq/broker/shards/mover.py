"""Adds a shard to the storage of a running cluster: moves the buckets that belong to it, a few at a time.

For each few: the map says that they are moving, and every live broker has read it; the server refuses
writes to them where they are; they are copied; the map says that they are copied; they are removed where they were; the
map says that they have moved. The map is the only state: a mover that starts again continues where the last one ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from dejaq.broker.shards.shards import CLAIM, MAP, SEEN
from dejaq.crashpoints import crash_at
from dejaq.domain.context import CallContext
from dejaq.domain.topic import Topic
from dejaq.errors import ClusterRefused, StoreError, SynchronizationError
from dejaq.storage.postgres.operations.change import places_of
from dejaq.storage.postgres.sharding import moving
from dejaq.storage.postgres.sharding.shard import STRIDE, PostgresShard
from dejaq.storage.postgres.store import PATIENCE_MS_DEFAULT
from dejaq.storage.sharded.placement import NOTHING, ShardInfo, ShardMap, Unit
from dejaq.storage.sharded.shards import MakeShard
from dejaq.synchronization.base import TTL_SECONDS_DEFAULT, Record, Synchronization
from dejaq.synchronization.claims import Claims
from dejaq.synchronization.keys import MEMBERS
from dejaq.timekeeper.clock import Clock

log = logging.getLogger(__name__)

CLAIM_SECONDS = TTL_SECONDS_DEFAULT + 3.0
_POLL_SECONDS = 0.02
# What moves at once: so many messages, unless one bucket has more, and usually so many buckets.
ROWS_AT_ONCE = 5_000
UNITS_AT_ONCE = 64
# How often a move is tried again without any progress, and after how long.
FAILURES_MAX = 5
RETRY_SECONDS = 1.0
LAST: Unit = (2**31 - 1, 0)
_MOVING = CallContext.internal("move buckets")


@dataclass(slots=True)
class MoveProgress:
    """The progress of a move."""

    buckets: int = 0
    moved: int = 0
    messages: int = 0


@dataclass(slots=True)
class Mover:
    """Moves the buckets of one storage. `grace` is how long after the last move a late writer is still refused."""

    synchronization: Synchronization
    make: MakeShard
    clock: Clock
    tell: Callable[[MoveProgress], None] = lambda progress: None
    grace: float = 2 * PATIENCE_MS_DEFAULT / 1_000
    # How many buckets move at once, at most.
    at_once: int = UNITS_AT_ONCE
    progress: MoveProgress = field(default_factory=MoveProgress)
    _shards: dict[str, PostgresShard] = field(default_factory=dict)
    _claims: Claims = field(init=False)
    _map: ShardMap | None = None
    _revision: int = 0

    def __post_init__(self) -> None:
        self._claims = Claims(owner="mover", synchronization=self.synchronization, prefix="")

    @property
    def map(self) -> ShardMap:
        """The map as it was last written or read."""
        assert self._map is not None
        return self._map

    async def add(self, name: str, dsn: str) -> MoveProgress:
        """Add a shard, or go on with adding it; raises CLUSTER_REFUSED when it cannot be added."""
        record = await self.synchronization.get(MAP)
        if record is None:
            raise ClusterRefused("no broker has served this cluster yet; start one, or give all shards to the first")
        await self._claim()
        try:
            self._take(await self.synchronization.get(MAP) or record)
            await self._begin(name, dsn)
            await self._persist(name)
            return self.progress
        finally:
            await self._close()
            await self._claims.release(CLAIM)

    async def _persist(self, name: str) -> None:
        """Move everything, and continue after a connection to a shard broke; raises after tries without progress."""
        failures, moved = 0, self.progress.moved
        while True:
            try:
                await self._open()
                await self._move_all()
                await asyncio.sleep(self.grace if self.progress.moved else 0)
                for shard in self._shards.values():
                    await moving.freeze(shard, [])
                return
            except StoreError as error:
                failures = 1 if self.progress.moved > moved else failures + 1
                moved = self.progress.moved
                if failures > FAILURES_MAX:
                    raise StoreError(
                        f"shard {name!r} is only half added; give the command again when its servers work",
                        code=error.code,
                        details=str(error),
                    ) from None
                log.warning("the move continues where it was: %s", error)
                await self._close()
                await asyncio.sleep(RETRY_SECONDS)

    async def _close(self) -> None:
        shards, self._shards = list(self._shards.values()), {}
        for shard in shards:
            await shard.close()

    async def rescue(self) -> None:
        """Finish only the few buckets that are moving, in place of a mover that has ended."""
        if not await self._claims.take(CLAIM):
            return
        try:
            record = await self.synchronization.get(MAP)
            if record is not None:
                self._take(record)
                if self.map.moving > self.map.done:
                    await self._open()
                    await self._move_some()
        finally:
            await self._close()
            await self._claims.release(CLAIM)

    async def _claim(self) -> None:
        """Take the claim, so that no other process moves buckets; the claim of a killed process expires."""
        loop = asyncio.get_running_loop()
        until = loop.time() + CLAIM_SECONDS
        while not await self._claims.take(CLAIM):
            if loop.time() > until:
                raise ClusterRefused("a shard is being added by another process already")
            await asyncio.sleep(_POLL_SECONDS)

    async def _check_claim(self) -> None:
        """Raise when the claim has expired: a broker may have finished this move, and copying again would empty it."""
        if not await self._claims.holds(CLAIM):
            raise ClusterRefused("this process paused too long and another moves the buckets; run the command again")

    # The map

    def _take(self, record: Record) -> None:
        self._map, self._revision = ShardMap.decode(record.value), record.revision

    async def _put(self, fresh: ShardMap) -> None:
        """Write the next map, and wait until every live broker has read it."""
        record = await self.synchronization.put(MAP, fresh.encode(), expected=self._revision)
        if record is None:
            raise ClusterRefused("another process changed the map of the shards; run the command again")
        self._take(record)
        while True:
            members = [one.key.removeprefix(MEMBERS) for one in await self._under(MEMBERS)]
            seen = {one.key.removeprefix(SEEN): int(one.value) for one in await self._under(SEEN)}
            if all(seen.get(member, 0) >= fresh.version for member in members):
                return
            await asyncio.sleep(_POLL_SECONDS)

    async def _under(self, prefix: str) -> list[Record]:
        while True:
            try:
                return await self.synchronization.under(prefix)
            except SynchronizationError as error:
                log.info("the records of the brokers are read again: %s", error)

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
        # The new shard is checked before any broker reads of it.
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
            # An earlier mover ended during this move.
            await self._move_some()
        for source in range(len(self.map.shards)):
            await moving.freeze(self._shard(source), self._moved_before(source, await self._topics()))
        while self.map.changing:
            topics = await self._topics()
            units = list(self._units(topics, self.map.done))
            self.progress.buckets = self.progress.moved + len(units)
            self.tell(self.progress)
            if not units:
                # New messages now go to their new shard: first no broker creates any, then every broker reads the map.
                await self._put(self.map.next(moving=LAST, copied=False))
                await self._move_some()
                await self._put(self.map.next(changing="", done=NOTHING, moving=NOTHING, copied=False))
                return
            last = await self._next_few(units)
            await self._bring_bodies(topics, last)
            await self._put(self.map.next(moving=last, copied=False))
            crash_at("mover.announced")
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
        """Copy the large bodies of the next buckets while their old shard still serves them: that may take long."""
        for (source, target), some in self._by_ends(self._units(topics, self.map.done, last)).items():
            await moving.bring_bodies(self._shard(source), self._shard(target), _places(some), self.clock)

    async def _move_some(self) -> None:
        """Move the buckets that are moving according to the map."""
        every = await self._topics()
        units = list(self._units(every, self.map.done, self.map.moving))
        by_source = self._by_ends(units)
        if not self.map.copied:
            for (source, target), some in by_source.items():
                places = _places(some)
                # Buckets that moved earlier stay frozen: a very late writer must not write to their old shard.
                await moving.freeze(self._shard(source), [*self._moved_before(source, every), *places])
                topics = {topic.number: topic for topic, _ in some}
                await self._teach(self._shard(target), topics)
                ends = self._shard(source), self._shard(target)
                copied = await moving.copy(*ends, places, sorted(topics), self.clock, check=self._check_claim)
                self.progress.messages += copied
                crash_at("mover.copied")
            await self._put(self.map.next(copied=True))
        for (source, _), some in by_source.items():
            await moving.remove(self._shard(source), _places(some), check=self._check_claim)
            crash_at("mover.removed")
        await self._put(self.map.next(done=self.map.moving, moving=NOTHING, copied=False))
        self.progress.moved += len(units)
        self.tell(self.progress)

    async def _teach(self, target: PostgresShard, topics: Mapping[int, Topic]) -> None:
        """Add topics that were created by a broker that did not know the new shard yet."""
        known = {topic.number for topic in await target.topics()}
        for number, topic in topics.items():
            if number not in known:
                await target.put_topic(topic, _MOVING)

    def _moved_before(self, source: int, topics: list[Topic]) -> list[int]:
        units = self._units(topics, NOTHING, self.map.done)
        return _places([(topic, bucket) for topic, bucket in units if self.map.owner_before(topic, bucket) == source])


def _places(units: list[tuple[Topic, int]]) -> list[int]:
    return [place for topic, bucket in units for place in places_of(topic, [bucket])]
