"""What one session may do: the commands that were allowed, until the rules change."""

from __future__ import annotations

from collections.abc import Iterator

from dejaq.broker.rights.guard import Guard
from dejaq.broker.rights.needs import Claim, Need
from dejaq.broker.rights.own_names import resolve
from dejaq.broker.rights.table import FRAMES, Open
from dejaq.domain.context import CallContext
from dejaq.errors import DejaqError, OutOfState
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1 import log_pb2
from dejaq.security.rights.matching import EVERY_GROUP, SOME_GROUP
from dejaq.security.rights.operations import Operation

OPENS_MAX = 16
# From so many messages on, a change or cancellation is recorded in the security log.
BULK_ROWS = 100
BULK_COMMANDS = frozenset({"edit", "cancel"})
HANDSHAKES = frozenset({"producer", "consumer"})


class SessionRights:
    """The rights of a session's caller. The topic and the producer group of a session never change."""

    __slots__ = ("_allowed", "_context", "_group", "_guard", "_read", "_role", "_topic", "_version")

    def __init__(self, guard: Guard, context: CallContext) -> None:
        self._guard = guard
        self._context = context
        self._topic = ""
        self._group = EVERY_GROUP
        self._role = ""
        # What the session needs for each log that it has begun to read, or has tried to.
        self._read: set[Need] = set()
        self._allowed: set[str] = set()
        self._version = 0

    def admit(self, command: str, frame: carrier.ClientFrame) -> None:
        """Let a command be done, or raise PERMISSION_DENIED."""
        if self._version == self._guard.version and command in self._allowed:
            return
        self._decide(command, frame)

    def _decide(self, command: str, frame: carrier.ClientFrame) -> None:
        guard, context = self._guard, self._context
        if guard.trusts(context):
            # Nothing that is checked can become different while a session lasts.
            self._version, self._allowed = guard.version, set(FRAMES)
            return
        if command == "hello" or command in HANDSHAKES:
            resolve(getattr(frame, command), context.principal.user)
        if self._version != guard.version:
            self._version, self._allowed = guard.version, set()
        if command == "log":
            self._decide_log(frame.log)
            return
        if command in HANDSHAKES:
            asked = getattr(frame, command)
            group = frame.producer.group if command == "producer" else EVERY_GROUP
            guard.require(context, f"session as {command}", self._needs(command, asked.topic, group))
            self._topic, self._group, self._role = asked.topic, group, command
            return
        guard.require(context, command, self._needs(command, self._topic, self._group))
        self._allowed.add(command)

    def _decide_log(self, command: log_pb2.LogCommand) -> None:
        """Let a command of a log be done; a session may append to any log that its caller may append to."""
        resolve(command, self._context.principal.user)
        kind = command.WhichOneof("command")
        if kind == "append":
            claim = Claim(Operation.PRODUCE, command.append.topic, SOME_GROUP)
            self._guard.require(self._context, "append to a log", [(claim,)])
        elif kind == "open":
            topic = command.open.topic
            operations = (Operation.CONSUME,) if command.open.group else (Operation.READ, Operation.CONSUME)
            need = tuple(Claim(operation, topic) for operation in operations)
            self._guard.require(self._context, "read a log", [need])
            if len(self._read) >= OPENS_MAX:
                raise OutOfState(f"the session has tried {OPENS_MAX} times to read a log; begin a new session")
            self._read.add(need)

    def _needs(self, command: str, topic: str, group: str) -> Iterator[Need]:
        operations = FRAMES.get(command, ())
        if not isinstance(operations, Open):
            yield tuple(Claim(operation, topic, group) for operation in operations)

    def changed(self, command: str, rows: int) -> None:
        """Report a change of many messages to the security log; creating them and settling leases is daily work."""
        if rows >= BULK_ROWS and command in BULK_COMMANDS and not self._guard.trusts(self._context):
            self._guard.changed_many(self._context, command, f"{self._topic} as {self._group}: {rows} messages")

    def lost(self) -> DejaqError | None:
        """Why the session may no longer be what it became by its handshake; None while it may."""
        if self._guard.trusts(self._context) or not (self._role or self._read):
            return None
        try:
            if self._role:
                needs = self._needs(self._role, self._topic, self._group)
                self._guard.require(self._context, f"session as {self._role}", needs)
            self._guard.require(self._context, "read a log", self._read)
        except DejaqError as refusal:
            return refusal
        return None
