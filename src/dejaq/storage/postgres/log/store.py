"""The logs of the shared store."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dejaq import limits
from dejaq.domain.context import CallContext
from dejaq.domain.topic import Topic
from dejaq.errors import Code, Refused, StoreError, error_of
from dejaq.storage.log.base import (
    MINUTE_MS,
    Append,
    Appended,
    BucketOffsets,
    CommittedOffset,
    GroupSeat,
    GroupView,
    LogName,
    LogRetention,
    LogSlice,
    MinuteCount,
    OffsetCommit,
    RolledBack,
    check_bucket,
    check_offset,
    unknown_name,
)
from dejaq.storage.log.prepared import PreparedTransaction, check_answer, check_of
from dejaq.storage.postgres.connection.database import PostgresDatabase, PostgresLink
from dejaq.storage.postgres.log import appending, grouping, meeting, preparing, reading, retaining
from dejaq.storage.postgres.log.appending import TimedAppend
from dejaq.storage.postgres.log.reading import BatchCache, LogBounds, settle
from dejaq.storage.postgres.operations.change import bucket_at, places_of
from dejaq.storage.postgres.queries import SQL
from dejaq.storage.transactions import LogStep, Verdict

# What one transaction appends at most.
_APPEND_BYTES = 16 * 1024 * 1024
_APPEND_BATCHES = 2_000
_FORGET_EVERY_MS = 600_000


@dataclass(slots=True)
class WaitingAppends:
    """A call that waits until its batches are appended."""

    appends: list[TimedAppend]
    done: asyncio.Future[list[Appended | Refused]]

    @property
    def size(self) -> int:
        """The bytes of its batches."""
        return sum(len(one.batch.records) for one in self.appends)


class PostgresLogs:
    """Implements `LogStorage`. The appends to a topic that wait for another one share the next transaction."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._bounds = LogBounds(database)
        self._cache = BatchCache()
        self._waiting: dict[int, deque[WaitingAppends]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._forgot_at: dict[int, int] = {}

    def forget(self) -> None:
        """Forget what was read: the server may be another one now."""
        self._cache.forget()

    def stats(self) -> dict[str, float]:
        """Numbers for the metrics."""
        return {"log_tail_bytes": self._cache.used}

    # Appending

    async def append(
        self, topic: Topic, batches: Sequence[Append], now: int, context: CallContext
    ) -> list[Appended | Refused]:
        """Append batches."""
        self._database.check_working()
        loop = asyncio.get_running_loop()
        waiting = WaitingAppends([TimedAppend(batch, now) for batch in batches], loop.create_future())
        queue = self._waiting.get(topic.number)
        if queue is None:
            queue = self._waiting[topic.number] = deque()
            task = loop.create_task(self._append_all(topic, queue), name=f"appends to {topic.name}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        queue.append(waiting)
        # A caller that stops waiting does not stop the append.
        return await asyncio.shield(waiting.done)

    async def _append_all(self, topic: Topic, queue: deque[WaitingAppends]) -> None:
        """Append what waits, until nothing waits."""
        while queue:
            calls = [queue.popleft()]
            size, count = calls[0].size, len(calls[0].appends)
            while queue and size + queue[0].size <= _APPEND_BYTES and count < _APPEND_BATCHES:
                calls.append(queue.popleft())
                size, count = size + calls[-1].size, count + len(calls[-1].appends)
            await self._append_calls(topic, calls)
        del self._waiting[topic.number]

    async def _append_calls(self, topic: Topic, calls: Sequence[WaitingAppends]) -> None:
        appends = [one for call in calls for one in call.appends]
        try:
            answers = await self._database.change(lambda link: appending.append(link, topic, appends))
        except Exception as error:  # noqa: BLE001  the callers get it
            for call in calls:
                if not call.done.done():
                    call.done.set_exception(error)
                    # A caller that is gone does not look at it.
                    call.done.exception()
            return
        rest = iter(answers)
        for call in calls:
            part = [next(rest) for _ in call.appends]
            if not call.done.done():
                call.done.set_result(part)

    async def rollback(self, topic: Topic, name: LogName, now: int, context: CallContext) -> RolledBack:
        """Take out a batch."""

        async def take_out(link: PostgresLink) -> RolledBack:
            found = await link.fetch("find_log_name", topic.number, name.session, name.sequence)
            if not found:
                raise unknown_name(topic, name)
            place, base, count = found[0]["place"], found[0]["base"], found[0]["count"]
            await appending.lock_buckets(link, topic, [place])
            await settle(link, [place], now)
            state = await link.fetch("log_batch_state", place, base)
            done = RolledBack(bucket_at(place), base, count)
            if state and state[0]["aborted"]:
                return done
            if not state or state[0]["length_ms"] is None or state[0]["length_ms"] < 0:
                raise error_of(Code.TOO_LATE)
            if await link.value("abort_log_batch", place, base) is None:
                raise error_of(Code.TOO_LATE)
            link.changes += 1
            await link.execute("note_change", link.writer, link.changes)
            return done

        return await self._database.change(take_out)

    # Reading

    async def read(
        self, topic: Topic, bucket: int, start: int, *, end: int | None, bytes_max: int, committed: bool, now: int
    ) -> LogSlice:
        """The batches from an offset on."""
        check_bucket(topic, bucket)
        for _ in range(3):
            bounds = (await self._bounds.of(topic, now))[bucket]
            check_offset(topic, bucket, start, bounds.start, bounds.next)
            stop = bounds.stable if committed else bounds.next
            stop = stop if end is None else min(stop, end)
            if start >= stop:
                return LogSlice((), start)
            (place,) = places_of(topic, [bucket])
            found = await reading.read(
                self._database.read,
                self._cache,
                place,
                start,
                stop,
                bytes_max,
                committed=committed,
                stable=bounds.stable,
            )
            if found.next > start:
                return found
            # Retention has removed it meanwhile.
        raise StoreError(f"bucket {bucket} of {topic.name!r} has no batch at offset {start}")

    async def offsets(self, topic: Topic, now: int) -> list[BucketOffsets]:
        """The offsets of every bucket."""
        return [one.offsets() for one in await self._bounds.of(topic, now)]

    async def offset_for_time(self, topic: Topic, bucket: int, ts: int) -> int:
        """The first offset of a time."""
        check_bucket(topic, bucket)
        (place,) = places_of(topic, [bucket])

        async def find(link: PostgresLink) -> int:
            ends = await grouping.ends_of(link, topic, [bucket])
            base: int | None = await link.value("log_offset_for_time", place, ts)
            return ends[bucket] if base is None else base

        return await self._database.look(find)

    async def minutes(self, topic: Topic, bucket: int, start: int, end: int) -> list[MinuteCount]:
        """The minutes of a range of times."""
        check_bucket(topic, bucket)
        (place,) = places_of(topic, [bucket])
        first = min(max(start, 0), limits.TS_MS_MAX) // MINUTE_MS * MINUTE_MS
        last = -(-min(max(end, 0), limits.TS_MS_MAX) // MINUTE_MS) * MINUTE_MS
        rows = await self._database.read(lambda link: link.fetch("log_minutes", place, first, last))
        return [MinuteCount(row["minute"], row["first"], int(row["count"]), int(row["bytes"])) for row in rows]

    # Groups

    async def claim(
        self, topic: Topic, group: str, buckets: Sequence[int], now: int, context: CallContext
    ) -> tuple[int, Mapping[int, int]]:
        """Claim buckets for a member."""
        for bucket in buckets:
            check_bucket(topic, bucket)
        return await self._database.change(lambda link: grouping.claim(link, topic, group, buckets, now))

    async def commit(
        self, topic: Topic, group: str, commits: Sequence[OffsetCommit], now: int, context: CallContext
    ) -> list[Code]:
        """Write what a group has read."""
        for one in commits:
            check_bucket(topic, one.bucket)
        return await self._database.change(lambda link: grouping.commit(link, topic, group, commits, now))

    async def reset(self, topic: Topic, group: str, offsets: Mapping[int, int], now: int, context: CallContext) -> None:
        """Set the offsets of a group."""
        for bucket in offsets:
            check_bucket(topic, bucket)

        async def reset(link: PostgresLink) -> None:
            ends = await grouping.ends_of(link, topic, list(offsets))
            for bucket, offset in offsets.items():
                check_offset(topic, bucket, offset, 0, ends[bucket])
            await grouping.reset(link, topic, group, offsets, now)

        await self._database.change(reset)

    async def groups(self, topic: Topic) -> dict[str, dict[int, CommittedOffset]]:
        """Every group."""
        return await self._database.read(lambda link: grouping.groups(link, topic))

    async def remove_group(self, topic: Topic, group: str, context: CallContext) -> bool:
        """Forget a group."""

        async def remove(link: PostgresLink) -> bool:
            await grouping.check_free(link, topic, group)
            link.changes += 1
            removed = await link.fetch("remove_log_group", topic.number, group)
            await link.execute("note_change", link.writer, link.changes)
            return bool(removed)

        return await self._database.change(remove)

    # Prepared transactions

    async def prepare(
        self,
        topic: Topic,
        name: str,
        steps: Sequence[LogStep],
        deadline: int,
        now: int,
        context: CallContext,
        check: int = 0,
    ) -> Verdict:
        """Store steps under a name."""
        check = check or check_of(steps)
        try:
            return await self._database.change(
                lambda link: preparing.prepare(link, topic, name, steps, deadline, now, check)
            )
        except preparing.RefusedPreparation as refused:
            return refused.verdict

    async def resolve(
        self, topic: Topic, name: str, *, commit: bool, now: int, context: CallContext
    ) -> PreparedTransaction:
        """Commit or abort a prepared transaction."""
        record = await self._database.change(lambda link: preparing.resolve(link, topic, name, commit=commit, now=now))
        check_answer(record, commit=commit)
        return record

    async def in_doubt(self, topic: Topic) -> list[PreparedTransaction]:
        """The transactions of a log that are not resolved."""
        return await self._database.read(lambda link: preparing.in_doubt(link, topic))

    # Members at all brokers

    async def meet(
        self, topic: Topic, group: str, broker: str, members: Sequence[str], joined: Sequence[str], now: int
    ) -> GroupView:
        """Renew the members of a broker; their ages are counted by the clock of the server."""
        return await self._database.change(lambda link: meeting.meet(link, topic, group, broker, members, joined))

    async def hold(self, topic: Topic, group: str, broker: str, member: str, buckets: Sequence[int]) -> set[int]:
        """Give free buckets to a member."""
        return await self._database.change(lambda link: meeting.hold(link, topic, group, broker, member, buckets))

    async def let_go(self, topic: Topic, group: str, member: str, buckets: Sequence[int]) -> None:
        """Free buckets that a member has."""
        key = topic.number, group, member, buckets
        await self._database.change(lambda link: link.execute("let_go_log_buckets", *key))

    async def members(self, topic: Topic, now: int) -> dict[str, list[GroupSeat]]:
        """The members of every group."""
        return await self._database.read(lambda link: meeting.members(link, topic))

    # Retention

    async def retain(self, topic: Topic, retention: LogRetention, now: int, context: CallContext) -> int:
        """Remove the oldest batches, at most a hundred of each bucket."""
        rows = await self._database.read(lambda link: link.fetch("log_ages", places_of(topic)))
        groups = await self.groups(topic) if retention.trim_read else {}
        removed = 0
        for bucket in retaining.buckets_to_look_at(rows, groups, retention, now):
            read = retaining.read_by_all(groups, bucket)
            removed += await self._remove(topic, bucket, read, retention, now)
        if now - self._forgot_at.get(topic.number, 0) >= _FORGET_EVERY_MS:
            self._forgot_at[topic.number] = now
            before = now - limits.PRODUCER_SESSION_MS_MAX
            await self._database.change(lambda link: link.execute("forget_log_sessions", topic.number, before))
        return removed

    async def _remove(self, topic: Topic, bucket: int, read: int, retention: LogRetention, now: int) -> int:
        async def remove(link: PostgresLink) -> int:
            return await retaining.remove_oldest(link, topic, bucket, read, retention, now)

        return await self._database.change(remove)

    async def drop(self, topic: Topic) -> None:
        """Remove everything of a topic, the batches in steps."""
        await self._database.change(lambda link: preparing.abort_all(link, topic))
        places = places_of(topic)

        async def drop(link: PostgresLink) -> bool:
            answer: str = await link.connection.execute(SQL["drop_log_batches"], places)
            return answer != "DELETE 0"

        while await self._database.read(drop):
            pass
        await self._database.change(lambda link: link.execute("drop_log", topic.number, places))
        self._forgot_at.pop(topic.number, None)
