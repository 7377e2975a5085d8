"""The calls of a log that belong to no session."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from dejaq.domain.topic import TopicKind
from dejaq.errors import Code, error_of
from dejaq.protocol.v1 import log_pb2
from dejaq.protocol.v1 import overseer_pb2 as overseer
from dejaq.sdk.admin.cluster import TopicInfo
from dejaq.sdk.session.seeds import Seeds
from dejaq.sdk.session.settings import ClientSettings
from dejaq.sdk.times import to_datetime, to_ms

# Where reading begins: "beginning", "latest", an offset for each bucket, one offset for all, or a time.
Start = str | int | datetime | Mapping[int, int]


@dataclass(frozen=True, slots=True)
class LogBucketInfo:
    """The offsets of a bucket. Readers get messages before `stable`; with `uncommitted`, those before `next`."""

    start: int
    stable: int
    next: int
    bytes: int


@dataclass(frozen=True, slots=True)
class LogGroupInfo:
    """A group: what it has committed of each bucket, its members, and how many messages it has not committed."""

    name: str
    committed: Mapping[int, int]
    members: Sequence[str]
    lag: int


@dataclass(frozen=True, slots=True)
class LogPreparedInfo:
    """A prepared transaction: until when it can be committed, its messages, and how many offsets it commits."""

    name: str
    prepared: datetime
    deadline: datetime
    messages: int
    offsets: int


class LogCalls:
    """The calls for one log."""

    def __init__(self, seeds: Seeds, settings: ClientSettings, topic: str) -> None:
        self.topic = topic
        self._seeds, self._settings = seeds, settings
        # How many buckets the log has; 0 while that is not known. All calls that need it wait for one question.
        self.known_buckets = 0
        self._asking: asyncio.Task[int] | None = None

    async def buckets(self) -> int:
        """How many buckets the log has."""
        if not self.known_buckets:
            asking = self._asking
            if asking is None or (asking.done() and (asking.cancelled() or asking.exception() is not None)):
                asking = self._asking = asyncio.ensure_future(self._ask_buckets())
            self.known_buckets = await asyncio.shield(asking)
        return self.known_buckets

    def refused(self, code: Code) -> None:
        """Ask for the number again after an append was refused: the log may have been deleted and created again."""
        if code in (Code.INVALID_ARGUMENT, Code.TOPIC_NOT_FOUND, Code.TOPIC_DELETING):
            self.known_buckets, self._asking = 0, None

    async def _ask_buckets(self) -> int:
        request = overseer.TopicRequest(name=self.topic, settings_only=True)
        response = overseer.TopicResponse
        answer = await self._seeds.call("Overseer.DescribeTopic", request, response, patience=self._settings)
        settings = TopicInfo.from_proto(answer.topic).settings
        if settings.kind is not TopicKind.LOG:
            raise error_of(Code.INVALID_ARGUMENT, f"topic {self.topic!r} is not a log; it is a {settings.kind}")
        return settings.buckets

    async def offsets(self) -> list[LogBucketInfo]:
        """The offsets of every bucket."""
        request = log_pb2.LogOffsetsRequest(topic=self.topic)
        answer = await self._seeds.call("Log.Offsets", request, log_pb2.LogOffsetsResponse, patience=self._settings)
        return [LogBucketInfo(one.start, one.stable, one.next, one.bytes) for one in answer.buckets]

    async def offsets_for_time(self, at: datetime | int) -> list[int]:
        """The first offset of a time in every bucket."""
        request = log_pb2.LogTimeRequest(topic=self.topic, ts=to_ms(at))
        answer = await self._seeds.call("Log.OffsetsForTime", request, log_pb2.LogTimeResponse, patience=self._settings)
        return list(answer.offsets)

    async def fetch(
        self,
        bucket: int,
        start: int,
        *,
        end: int = 0,
        bytes_max: int = 1024 * 1024,
        uncommitted: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> log_pb2.LogFetchResponse:
        """Batches of a bucket, from an offset on."""
        request = log_pb2.LogFetchRequest(
            topic=self.topic,
            bucket=bucket,
            start=start,
            end=end,
            bytes_max=bytes_max,
            uncommitted=uncommitted,
            headers=headers,
        )
        return await self._seeds.call("Log.Fetch", request, log_pb2.LogFetchResponse, patience=self._settings)

    async def rollback(self, name: str) -> tuple[int, int, int]:
        """Take out a batch: its bucket, first offset and number of messages."""
        session, _, sequence = name.rpartition("/")
        try:
            request = log_pb2.LogRollbackRequest(
                topic=self.topic, session=bytes.fromhex(session), sequence=int(sequence)
            )
        except ValueError:
            raise error_of(Code.INVALID_ARGUMENT, f"{name!r} is not the name of a batch") from None
        answer = await self._seeds.call("Log.Rollback", request, log_pb2.LogRollbackResponse, patience=self._settings)
        return answer.bucket, answer.base, answer.count

    async def groups(self) -> list[LogGroupInfo]:
        """Every group, with its lag."""
        request = log_pb2.LogGroupsRequest(topic=self.topic)
        answer = await self._seeds.call("Log.Groups", request, log_pb2.LogGroupsResponse, patience=self._settings)
        offsets = await self.offsets()
        found = []
        for group in answer.groups:
            committed = {position.bucket: position.offset for position in group.committed}
            lag = sum(max(one.next - max(committed.get(n, 0), one.start), 0) for n, one in enumerate(offsets))
            found.append(LogGroupInfo(group.name, committed, list(group.members), lag))
        return found

    async def reset(self, group: str, offsets: Mapping[int, int]) -> None:
        """Set the offsets of a group."""
        positions = [log_pb2.LogPosition(bucket=bucket, offset=offset) for bucket, offset in offsets.items()]
        request = log_pb2.LogResetRequest(topic=self.topic, group=group, positions=positions)
        await self._seeds.call("Log.Reset", request, log_pb2.LogResetResponse, patience=self._settings)

    async def remove_group(self, group: str) -> bool:
        """Forget a group; whether there was one."""
        request = log_pb2.LogRemoveGroupRequest(topic=self.topic, group=group)
        patience = self._settings
        answer = await self._seeds.call("Log.RemoveGroup", request, log_pb2.LogRemoveGroupResponse, patience=patience)
        return answer.removed

    async def resolve_prepared(self, name: str, *, commit: bool) -> None:
        """Commit or abort a prepared transaction."""
        request = log_pb2.LogResolveRequest(topic=self.topic, name=name, commit=commit)
        await self._seeds.call("Log.Resolve", request, log_pb2.LogResolveResponse, patience=self._settings)

    async def in_doubt(self) -> list[LogPreparedInfo]:
        """The transactions that are prepared and not resolved."""
        request = log_pb2.LogInDoubtRequest(topic=self.topic)
        answer = await self._seeds.call("Log.InDoubt", request, log_pb2.LogInDoubtResponse, patience=self._settings)
        return [
            LogPreparedInfo(
                one.name, to_datetime(one.prepared_ms), to_datetime(one.deadline_ms), one.messages, one.offsets
            )
            for one in answer.transactions
        ]

    async def resolve(
        self, start: Start, *, uncommitted: bool = False, buckets: Sequence[int] | None = None, is_end: bool = False
    ) -> dict[int, int]:
        """The offset at which reading begins, for every bucket that `start` names, or for those of them in `buckets`.

        Where it ends, an offset that the bucket does not have is its first or last one; where it begins, that raises.
        """
        offsets = await self.offsets()
        chosen = range(len(offsets)) if buckets is None else buckets
        for bucket in (*chosen, *(start if isinstance(start, Mapping) else ())):
            if not 0 <= bucket < len(offsets):
                raise error_of(Code.INVALID_ARGUMENT, f"topic {self.topic!r} has {len(offsets)} buckets, not {bucket}")
        if start == "beginning":
            return {bucket: offsets[bucket].start for bucket in chosen}
        if start == "latest":
            return {bucket: offsets[bucket].next if uncommitted else offsets[bucket].stable for bucket in chosen}
        if isinstance(start, datetime):
            times = await self.offsets_for_time(start)
            return {bucket: times[bucket] for bucket in chosen}
        if isinstance(start, int) and not isinstance(start, bool):
            wanted: Mapping[int, int] = dict.fromkeys(chosen, start)
        elif isinstance(start, Mapping):
            wanted = start
        else:
            raise error_of(
                Code.INVALID_ARGUMENT,
                f"{start!r} is not a place; give 'beginning', 'latest', an offset, {{bucket: offset}} or a time",
            )
        found: dict[int, int] = {}
        for bucket in sorted(wanted.keys() & set(chosen)):
            offset, held = wanted[bucket], offsets[bucket]
            found[bucket] = min(max(offset, held.start), held.next)
            if found[bucket] != offset and not is_end:
                raise error_of(
                    Code.OFFSET_OUT_OF_RANGE,
                    f"bucket {bucket} of {self.topic!r} has the offsets {held.start} to {held.next}, not {offset}",
                )
        return found
