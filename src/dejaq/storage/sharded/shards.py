"""The shards of an open storage: asked one by one or together, and reconnected when they fail."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from dejaq.domain.topic import Topic
from dejaq.errors import Code, DejaqError, StoreError, Unavailable
from dejaq.storage.postgres.connection.failures import Moving
from dejaq.storage.postgres.sharding.shard import PostgresShard
from dejaq.storage.sharded.placement import ShardInfo, ShardMap

log = logging.getLogger(__name__)
Result = TypeVar("Result")
MakeShard = Callable[[ShardInfo], PostgresShard]
Ask = Callable[[PostgresShard], Awaitable[Result]]

# A shard that does not answer a query in this time is left out of the next queries until it answers.
LOOK_SECONDS = 1.0
# How long a request waits for a bucket that moves, and how often a request that met a moving bucket checks again.
MOVING_SECONDS = 15.0
POLL_SECONDS = 0.05
_MEND_SECONDS_MIN, _MEND_SECONDS_MAX = 0.2, 5.0


class Shards:
    """The open shards by name, and the map of the buckets."""

    def __init__(self, first: ShardMap, make: MakeShard) -> None:
        self.map = first
        self.make = make
        # The name of connections at the servers; empty for the default.
        self.name = ""
        self._by_name: dict[str, PostgresShard] = {}
        self._late: dict[str, set[asyncio.Future[Any]]] = {}
        self._mender: asyncio.Task[None] | None = None
        self._now = 0
        self._map_changed = asyncio.Event()

    # Lifecycle

    async def open(self, now: int) -> None:
        """Open every shard; one that fails is tried again later, unless it is the first."""
        self._now = now
        for place, info in enumerate(self.map.shards):
            await self._open(info, must=place == 0)
        self._mender = asyncio.get_running_loop().create_task(self._mend(), name="shards")

    async def _open(self, info: ShardInfo, *, must: bool) -> None:
        shard = self._by_name.get(info.name) or self.make(info)
        self._by_name[info.name] = shard
        if self.name:
            shard.announce(self.name)
        try:
            await shard.open(self._now)
        except StoreError as error:
            if must or len(self.map.shards) == 1:
                raise
            log.warning("shard %s does not work now: %s", info.name, error)

    async def close(self) -> None:
        """Close every shard."""
        if self._mender is not None:
            self._mender.cancel()
            await asyncio.wait((self._mender,))
            self._mender = None
        late = [task for tasks in self._late.values() for task in tasks]
        if late:
            await asyncio.wait(late, timeout=MOVING_SECONDS)
        for shard in self._by_name.values():
            await shard.close()
        self._by_name.clear()

    async def follow(self, fresh: ShardMap) -> None:
        """Use another map; its new shards are opened."""
        if fresh.version <= self.map.version:
            return
        for info in fresh.shards:
            if info.name not in self._by_name:
                await self._open(info, must=False)
        self.map = fresh
        for shard in self:
            shard.forget()
        self._map_changed.set()
        self._map_changed = asyncio.Event()

    async def recover(self, now: int) -> None:
        """Reopen every shard that failed; raises while the first shard does not work."""
        self._now = now
        for place, shard in enumerate(self):
            if shard.failure is not None:
                try:
                    await shard.recover(now)
                except DejaqError:
                    if place == 0:
                        raise

    async def _mend(self) -> None:
        pause = _MEND_SECONDS_MIN
        while True:
            await asyncio.sleep(pause)
            failed = [shard for shard in self if shard.failure is not None]
            for shard in failed:
                try:
                    await shard.recover(self._now)
                    log.warning("shard %s works again", shard.name)
                except DejaqError as error:
                    log.debug("shard %s does not work yet: %s", shard.name, error)
            pause = min(2 * pause, _MEND_SECONDS_MAX) if failed else _MEND_SECONDS_MIN

    # Waiting for buckets that move

    async def steady(self, topic: Topic, buckets: Iterable[int] | None = None) -> None:
        """Wait until none of the buckets, or of the topic's buckets, is being moved; raises UNAVAILABLE when it takes
        long.
        """
        deadline = asyncio.get_running_loop().time() + MOVING_SECONDS
        listed = range(topic.settings.buckets) if buckets is None else list(buckets)
        while self.map.moving > self.map.done and any(self.map.frozen(topic, bucket) for bucket in listed):
            await self.another_map(deadline)

    async def another_map(self, deadline: float, *, poll: float = MOVING_SECONDS) -> None:
        """Wait for the next map, for `poll` seconds at most; raises UNAVAILABLE at the deadline."""
        left = deadline - asyncio.get_running_loop().time()
        if left <= 0:
            raise Moving("the messages are being moved to another shard; try again")
        with suppress(TimeoutError):
            await asyncio.wait_for(self._map_changed.wait(), min(left, poll))

    async def until_moved(self, work: Callable[[], Awaitable[Result]]) -> Result:
        """Repeat an operation that is undone when it meets a moving bucket, until it meets none."""
        deadline = asyncio.get_running_loop().time() + MOVING_SECONDS
        while True:
            try:
                return await work()
            except Moving:
                await self.another_map(deadline, poll=POLL_SECONDS)

    # Asking

    def __iter__(self) -> Iterator[PostgresShard]:
        return iter([self._by_name[info.name] for info in self.map.shards if info.name in self._by_name])

    def __len__(self) -> int:
        return len(self.map.shards)

    def at(self, place: int) -> PostgresShard:
        """The shard at an index of the map."""
        return self._by_name[self.map.shards[place].name]

    async def ask(self, place: int, call: Ask[Result]) -> Result:
        """Ask one shard; one that does not work is UNAVAILABLE, because other shards may work."""
        shard = self.at(place)
        if len(self.map.shards) == 1:
            return await call(shard)
        try:
            return await call(shard)
        except StoreError as error:
            if error.code is Code.STORE_CORRUPT:
                raise
            raise Unavailable(
                f"shard {shard.name!r} of the storage does not work now; nothing was changed there",
                details=error.message,
            ) from None

    async def ask_all(self, calls: Mapping[int, Ask[Result]]) -> dict[int, Result | DejaqError]:
        """Ask several shards at once; the answer of a shard that fails is its error."""
        if len(calls) == 1:
            ((place, call),) = calls.items()
            try:
                return {place: await self.ask(place, call)}
            except DejaqError as error:
                return {place: error}
        tasks = {place: asyncio.ensure_future(self.ask(place, call)) for place, call in calls.items()}
        if not tasks:
            return {}
        # Nothing is cancelled: a commit whose caller was cancelled is made all the same.
        await asyncio.wait(tasks.values())
        found: dict[int, Result | DejaqError] = {}
        for place, task in tasks.items():
            try:
                found[place] = task.result()
            except DejaqError as error:
                found[place] = error
        return found

    async def ask_steadily(self, calls: Mapping[int, Ask[Result]]) -> dict[int, Result | DejaqError]:
        """Ask several shards at once, and ask those again that met a moving bucket: they have changed nothing."""
        deadline = asyncio.get_running_loop().time() + MOVING_SECONDS
        answers = await self.ask_all(calls)
        while again := [place for place, answer in answers.items() if isinstance(answer, Moving)]:
            await self.another_map(deadline, poll=POLL_SECONDS)
            answers |= await self.ask_all({place: calls[place] for place in again})
        return answers

    async def look(self, calls: Mapping[int, Ask[Result]]) -> dict[int, Result]:
        """The answers of the shards that answer soon; raises when none does."""
        names = {place: self.map.shards[place].name for place in calls}
        tasks = {
            place: asyncio.ensure_future(self.ask(place, call))
            for place, call in calls.items()
            if len(calls) == 1 or not self._late.get(names[place])
        }
        if tasks:
            await asyncio.wait(tasks.values(), timeout=LOOK_SECONDS if len(calls) > 1 else None)
        found: dict[int, Result] = {}
        errors: list[BaseException] = []
        for place, task in tasks.items():
            if not task.done():
                self._wait_for(names[place], task)
            elif (error := task.exception()) is not None:
                errors.append(error)
            else:
                found[place] = task.result()
        if not found:
            raise errors[0] if errors else Unavailable("no shard of the storage answers")
        return found

    def _wait_for(self, name: str, task: asyncio.Future[Result]) -> None:
        late = self._late.setdefault(name, set())
        late.add(task)

        def done(ended: asyncio.Future[Result]) -> None:
            late.discard(ended)
            if not ended.cancelled():
                ended.exception()

        task.add_done_callback(done)


def raise_if_all_failed(answers: Mapping[int, object]) -> None:
    """Raise the first error when every shard failed."""
    errors = [answer for answer in answers.values() if isinstance(answer, DejaqError)]
    if errors and len(errors) == len(answers):
        raise errors[0]
