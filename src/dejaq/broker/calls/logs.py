"""The calls of log topics that belong to no session."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from google.protobuf.message import Message

from dejaq import limits
from dejaq.broker.log import preparing
from dejaq.broker.log.encoding import slice_of
from dejaq.broker.log.filtering import filter_of
from dejaq.broker.log.topics import LogTopics
from dejaq.broker.sessions.broker_context import BrokerContext
from dejaq.domain.context import CallContext
from dejaq.errors import InvalidArgument, OutOfState
from dejaq.protocol.v1 import log_pb2
from dejaq.storage.log.base import LogName


class LogService:
    """Answers the calls of `Log`."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker

    @property
    def _logs(self) -> LogTopics:
        return self._broker.logs

    def calls(self) -> dict[str, Callable[[CallContext, Any], Awaitable[Message]]]:
        """Every call by its name in the protocol."""
        return {
            "Log.Offsets": self.offsets,
            "Log.OffsetsForTime": self.offsets_for_time,
            "Log.Fetch": self.fetch,
            "Log.Rollback": self.rollback,
            "Log.Groups": self.groups,
            "Log.Reset": self.reset,
            "Log.RemoveGroup": self.remove_group,
            "Log.Prepare": self.prepare,
            "Log.Resolve": self.resolve,
            "Log.InDoubt": self.in_doubt,
        }

    async def offsets(self, context: CallContext, request: log_pb2.LogOffsetsRequest) -> log_pb2.LogOffsetsResponse:
        """The offsets of every bucket."""
        topic = self._logs.catalog.live_log(request.topic)
        found = await self._logs.storage.offsets(topic, self._logs.clock.now_ms())
        return log_pb2.LogOffsetsResponse(
            buckets=[
                log_pb2.LogBucketOffsets(start=one.start, stable=one.stable, next=one.next, bytes=one.bytes)
                for one in found
            ]
        )

    async def offsets_for_time(self, context: CallContext, request: log_pb2.LogTimeRequest) -> log_pb2.LogTimeResponse:
        """The first offset of a time in every bucket."""
        topic = self._logs.catalog.live_log(request.topic)
        storage = self._logs.storage
        buckets = range(topic.settings.buckets)
        return log_pb2.LogTimeResponse(
            offsets=[await storage.offset_for_time(topic, bucket, request.ts) for bucket in buckets]
        )

    async def fetch(self, context: CallContext, request: log_pb2.LogFetchRequest) -> log_pb2.LogFetchResponse:
        """Batches of one bucket."""
        topic, wanted = self._logs.catalog.live_log(request.topic), filter_of(request.headers)
        part = await self._logs.storage.read(
            topic,
            request.bucket,
            request.start,
            end=request.end or None,
            bytes_max=min(max(request.bytes_max, 1), limits.BATCH_BYTES_MAX // 2),
            committed=not request.uncommitted,
            now=self._logs.clock.now_ms(),
        )
        if wanted is not None:
            part = await wanted.select(part, request.start)
        slices = [slice_of(request.bucket, batch) for batch in part.batches]
        return log_pb2.LogFetchResponse(slices=slices, next=part.next)

    async def rollback(self, context: CallContext, request: log_pb2.LogRollbackRequest) -> log_pb2.LogRollbackResponse:
        """Take out a batch by its name."""
        self._broker.doctor.admit("create")
        topic = self._logs.catalog.live_log(request.topic)
        name = LogName(request.session, request.sequence)
        if len(name.session) != 10:
            raise InvalidArgument(f"a session has 10 bytes, not {len(name.session)}")
        done = await self._logs.storage.rollback(topic, name, self._logs.clock.now_ms(), context)
        self._logs.appended(topic, [done.bucket], 0)
        return log_pb2.LogRollbackResponse(bucket=done.bucket, base=done.base, count=done.count)

    async def groups(self, context: CallContext, request: log_pb2.LogGroupsRequest) -> log_pb2.LogGroupsResponse:
        """The groups of a log."""
        topic = self._logs.catalog.live_log(request.topic)
        found = await self._logs.storage.groups(topic)
        members = await self._logs.members(topic)
        return log_pb2.LogGroupsResponse(
            groups=[
                log_pb2.LogGroup(
                    name=name,
                    committed=[
                        log_pb2.LogPosition(bucket=bucket, offset=one.offset)
                        for bucket, one in sorted(offsets.items())
                        if one.offset >= 0
                    ],
                    members=members.get(name, []),
                )
                for name, offsets in sorted(found.items())
            ]
        )

    async def reset(self, context: CallContext, request: log_pb2.LogResetRequest) -> log_pb2.LogResetResponse:
        """Set the offsets of a group."""
        self._broker.doctor.admit("settle")
        topic = self._logs.catalog.live_log(request.topic)
        _check_group(request.group)
        offsets = {position.bucket: position.offset for position in request.positions}
        storage = self._logs.storage
        await storage.reset(topic, request.group, offsets, self._logs.clock.now_ms(), context)
        await self._logs.groups.of(topic, request.group).restart()
        # Members at other brokers find that their claims have ended.
        self._logs.group_changed(topic)
        return log_pb2.LogResetResponse()

    async def remove_group(
        self, context: CallContext, request: log_pb2.LogRemoveGroupRequest
    ) -> log_pb2.LogRemoveGroupResponse:
        """Forget a group without members."""
        self._broker.doctor.admit("settle")
        topic = self._logs.catalog.live_log(request.topic)
        if members := (await self._logs.members(topic)).get(request.group, []):
            raise OutOfState(f"group {request.group!r} has {len(members)} members; stop them first")
        removed = await self._logs.storage.remove_group(topic, request.group, context)
        return log_pb2.LogRemoveGroupResponse(removed=removed)

    async def prepare(self, context: CallContext, request: log_pb2.LogPrepareRequest) -> log_pb2.LogPrepareResponse:
        """Store steps under a name."""
        self._broker.doctor.admit("transact")
        return await preparing.prepare(self._logs, context, request)

    async def resolve(self, context: CallContext, request: log_pb2.LogResolveRequest) -> log_pb2.LogResolveResponse:
        """Commit or abort a prepared transaction."""
        self._broker.doctor.admit("transact")
        return await preparing.resolve(self._logs, context, request)

    async def in_doubt(self, context: CallContext, request: log_pb2.LogInDoubtRequest) -> log_pb2.LogInDoubtResponse:
        """The transactions of a log that are not resolved."""
        return await preparing.in_doubt(self._logs, context, request)


def _check_group(name: str) -> None:
    if not 1 <= len(name) <= limits.GROUP_CHARS_MAX or not name.isprintable():
        raise InvalidArgument(f"a group has a name of 1 to {limits.GROUP_CHARS_MAX} printable characters")
