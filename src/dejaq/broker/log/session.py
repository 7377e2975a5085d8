"""The part of a session that works on logs: appends, and at most one reader."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from dejaq import limits
from dejaq.broker.doctor import cannot_serve
from dejaq.broker.log.appending import append
from dejaq.broker.log.filtering import filter_of
from dejaq.broker.log.groups import GroupMember, ReaderGroup
from dejaq.broker.log.reader import LogFeed
from dejaq.broker.log.topics import LogTopics
from dejaq.domain.context import CallContext
from dejaq.domain.topic import Topic
from dejaq.errors import Code, DejaqError, Indefinite, InternalError, InvalidArgument, OutOfState, StoreError
from dejaq.protocol.spliced import BrokerSent
from dejaq.protocol.status import error_to_proto
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1 import log_pb2
from dejaq.storage.log.base import OffsetCommit, check_bucket, check_offset

# Events that wait for a client that does not read; then its session is ended.
_EVENTS_MAX = 1_000
# The broker admits commands of logs as it admits these commands.
_ADMITTED_AS = {"append": "create", "commit": "settle", "release": "settle"}


class LogSession:
    """What one client does with logs. `send` sends a frame, `end` ends the session with a reason."""

    def __init__(
        self,
        logs: LogTopics,
        *,
        send: Callable[[BrokerSent], Awaitable[None]],
        end: Callable[[DejaqError], None],
    ) -> None:
        self._logs, self._send, self._end = logs, send, end
        self.reader: LogFeed | None = None
        self._group: ReaderGroup | None = None
        self._member: GroupMember | None = None
        self._tasks: list[asyncio.Task[None]] = []
        # Events that answer no command, in order, and what is done when each was sent.
        self._events: asyncio.Queue[tuple[log_pb2.LogEvent, Callable[[], None]]] | None = None

    @property
    def topic(self) -> Topic | None:
        """The log that it reads."""
        return self.reader.topic if self.reader is not None else None

    @property
    def name(self) -> str:
        """The name of its reader in its group."""
        return self._member.name if self._member is not None else ""

    async def answer(self, context: CallContext, frame: carrier.ClientFrame, answer: carrier.BrokerFrame) -> None:
        """Do a command of a frame and write its answer, if the state of the broker allows it."""
        doctor = self._logs.doctor
        doctor.admit(_ADMITTED_AS.get(frame.log.WhichOneof("command") or "", "subscribe"))
        event = log_pb2.LogEvent()
        await self._handle(context, frame.log, event)
        doctor.confirm()
        if event.WhichOneof("event") is not None:
            answer.log.CopyFrom(event)

    async def _handle(self, context: CallContext, command: log_pb2.LogCommand, answer: log_pb2.LogEvent) -> None:
        """Do one command and write its answer; commands without an answer leave it empty."""
        match command.WhichOneof("command"):
            case "append":
                answer.appended.CopyFrom(await append(self._logs, context, command.append))
            case "open":
                await self._open(command.open)
                answer.opened.SetInParent()
            case "commit":
                answer.committed.codes.extend(int(code) for code in await self._commit(context, command.commit))
            case "credit":
                self._reading().add_credit(min(command.credit.bytes, limits.LOG_CREDIT_BYTES_MAX))
            case "seek":
                await self._seek(command.seek)
            case "pause":
                self._reading().pause(command.pause.buckets, resume=command.pause.resume)
            case "release":
                if self._group is not None and self._member is not None:
                    self._group.release(self._member, *_released(command.release))
            case _:
                raise InvalidArgument("the broker does not know this command for logs")

    def _reading(self) -> LogFeed:
        if self.reader is None:
            raise OutOfState("open a reader first")
        return self.reader

    async def _open(self, request: log_pb2.LogOpen) -> None:
        if self.reader is not None:
            raise OutOfState("the session has a reader already")
        topic = self._logs.catalog.live_log(request.topic)
        for name, what in ((request.group, "group"), (request.member, "member")):
            if len(name) > limits.GROUP_CHARS_MAX or (name and not name.isprintable()):
                raise InvalidArgument(f"the name of a {what} has at most {limits.GROUP_CHARS_MAX} printable characters")
        if request.group and not request.member:
            raise InvalidArgument("a member of a group has a name")
        positions: dict[int, int] = {}
        for position in request.positions:
            check_bucket(topic, position.bucket)
            positions[position.bucket] = position.offset
        storage = self._logs.storage
        reader = LogFeed(
            topic,
            storage,
            self._logs.clock,
            self._logs.encoded,
            committed=not request.uncommitted,
            wanted=filter_of(request.headers),
            credit=min(request.credit_bytes, limits.LOG_CREDIT_BYTES_MAX),
            send=self._send,
            sent=lambda count: self._logs.pushed(topic, count),
        )
        self.reader, self._events = reader, asyncio.Queue(_EVENTS_MAX)
        self._logs.enter(reader)
        self._spawn(reader.run())
        self._spawn(self._send_events(self._events))
        if not request.group:
            reader.give(positions.items())
            return
        self._member = GroupMember(request.member, positions, self._granted, self._revoked, self._failed)
        self._group = self._logs.groups.of(topic, request.group)
        self._group.join(self._member)

    async def _commit(self, context: CallContext, request: log_pb2.LogCommit) -> list[Code]:
        reader = self._reading()
        if self._group is None:
            raise OutOfState("a reader without a group commits nothing")
        if len(request.claims) != len(request.positions):
            raise InvalidArgument("a commit has a claim for each position")
        commits = [
            OffsetCommit(position.bucket, position.offset, claim)
            for position, claim in zip(request.positions, request.claims, strict=True)
        ]
        now = self._logs.clock.now_ms()
        return await self._logs.storage.commit(reader.topic, self._group.name, commits, now, context)

    async def _seek(self, request: log_pb2.LogSeek) -> None:
        reader, position = self._reading(), request.position
        moved = log_pb2.LogMoved(number=request.number)
        try:
            check_bucket(reader.topic, position.bucket)
            offsets = await self._logs.storage.offsets(reader.topic, self._logs.clock.now_ms())
            held = offsets[position.bucket]
            check_offset(reader.topic, position.bucket, position.offset, held.start, held.next)
            if position.bucket not in reader.positions:
                raise OutOfState(f"the reader does not have bucket {position.bucket}")
        except DejaqError as error:
            moved.error.CopyFrom(error_to_proto(error))
            self._tell(log_pb2.LogEvent(moved=moved), lambda: None)
            return
        # Nothing of the bucket is sent until the client knows that it moved.
        at = reader.seek(position.bucket, position.offset)
        self._tell(log_pb2.LogEvent(moved=moved), lambda: reader.go_on(position.bucket, at))

    # What happens by itself

    def _granted(self, offsets: Mapping[int, int], claim: int) -> None:
        positions = [log_pb2.LogPosition(bucket=bucket, offset=offset) for bucket, offset in offsets.items()]
        event = log_pb2.LogEvent(assigned=log_pb2.LogAssigned(positions=positions, claim=claim))
        reader, member = self._reading(), self._member
        reader.take(offsets)

        def begin() -> None:
            # It may have lost some of them before it knew that it had them.
            held = member.buckets - member.leaving.keys() if member is not None else set()
            reader.give([item for item in offsets.items() if item[0] in held], claim)

        self._tell(event, begin)

    def _revoked(self, buckets: list[int]) -> None:
        self._reading().take(buckets)
        self._tell(log_pb2.LogEvent(revoked=log_pb2.LogRevoked(buckets=buckets)), lambda: None)

    def _tell(self, event: log_pb2.LogEvent, done: Callable[[], None]) -> None:
        try:
            if self._events is not None:
                self._events.put_nowait((event, done))
        except asyncio.QueueFull:
            self._end(OutOfState("the client does not read"))

    async def _send_events(self, events: asyncio.Queue[tuple[log_pb2.LogEvent, Callable[[], None]]]) -> None:
        while True:
            event, done = await events.get()
            await self._send(carrier.BrokerFrame(log=event))
            done()

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (cause := task.exception()) is None:
            return
        self._failed(cause if isinstance(cause, DejaqError) else InternalError(details=repr(cause)))

    def _failed(self, error: DejaqError) -> None:
        """End the session. After a passing fault of the store the client is to open it again."""
        if isinstance(error, StoreError | Indefinite):
            self._logs.doctor.look()
        self._end(cannot_serve(error) if isinstance(error, StoreError) else error)

    def close(self) -> None:
        """Leave the group and stop reading; calling it again does nothing."""
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()
        if self._group is not None and self._member is not None:
            self._group.leave(self._member)
        self._group = self._member = None
        if self.reader is not None:
            self._logs.leave(self.reader)


def _released(request: log_pb2.LogRelease) -> tuple[list[int], list[int]]:
    if request.claims and len(request.claims) != len(request.buckets):
        raise InvalidArgument("a release has a claim for each bucket")
    return list(request.buckets), list(request.claims)
