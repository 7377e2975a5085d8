"""The changes to logs that a transaction collects."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from dejaq.errors import Code, error_of
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1 import log_pb2
from dejaq.sdk.log.appender import WaitingBatch
from dejaq.sdk.log.stream import positions_to_proto


@dataclass(frozen=True, slots=True)
class LogTarget:
    """A log to which a transaction appends; `choose` finds the bucket of a key, or of the next message without one."""

    topic: str
    choose: Callable[[bytes, int | None], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class GroupCommits:
    """A member of a group, whose offsets a transaction commits; `done` gets what was committed."""

    topic: str
    group: str
    claims: Callable[[], dict[int, int]]
    positions: Callable[[], dict[int, int]]
    done: Callable[[Mapping[int, int]], None]


class HasLogTarget(Protocol):
    """A log."""

    @property
    def target(self) -> LogTarget:
        """What a transaction appends to."""


class HasGroupCommits(Protocol):
    """A member of a group."""

    @property
    def commits(self) -> GroupCommits:
        """What a transaction commits."""


@dataclass(eq=False, slots=True)
class _LogMessages:
    """Messages for one log, in the order of the calls: body, key, headers and bucket of each."""

    log: LogTarget
    rows: list[tuple[bytes, bytes, bytes, int | None]] = field(default_factory=list)
    # The batch of each bucket, once the buckets were chosen.
    batches: dict[int, WaitingBatch] | None = None

    async def chosen(self) -> dict[int, WaitingBatch]:
        """The batch of each bucket; the same when it is asked again."""
        if self.batches is None:
            found: dict[int, WaitingBatch] = {}
            for body, key, headers, bucket in self.rows:
                place = await self.log.choose(key, bucket)
                found.setdefault(place, WaitingBatch(place)).add(body, key, headers)
            self.batches = found
        return self.batches


class LogChanges:
    """Appends and commits of one transaction."""

    def __init__(self) -> None:
        self._messages: dict[str, _LogMessages] = {}
        # The offsets and the claims of each member, by topic and group.
        self._commits: dict[tuple[str, str], tuple[GroupCommits, dict[int, int], dict[int, int]]] = {}

    def append(self, log: LogTarget, row: tuple[bytes, bytes, bytes, int | None]) -> None:
        """Add a message."""
        self._messages.setdefault(log.topic, _LogMessages(log)).rows.append(row)

    def commit(self, member: GroupCommits, offsets: Mapping[int, int] | None) -> None:
        """Add what a member of a group has handed out until now, or these offsets."""
        claims = member.claims()
        wanted = member.positions() if offsets is None else dict(offsets)
        lost = sorted(wanted.keys() - claims.keys())
        if lost:
            raise error_of(Code.CLAIM_LOST, details=f"buckets {', '.join(map(str, lost))} of group {member.group}")
        _, known, under = self._commits.setdefault((member.topic, member.group), (member, {}, {}))
        known.update(wanted)
        under.update({bucket: claims[bucket] for bucket in wanted})

    async def add_to(self, request: carrier.TransactRequest) -> None:
        """Write the steps."""
        for messages in self._messages.values():
            for bucket, batch in sorted((await messages.chosen()).items()):
                records = log_pb2.LogRecords(bodies=batch.bodies, keys=batch.keys, headers=batch.headers)
                step = request.steps.add(topic=messages.log.topic)
                step.append.bucket, step.append.records = bucket, records.SerializeToString()
        for member, offsets, claims in self._commits.values():
            if offsets:
                step = request.steps.add(topic=member.topic, actor=member.group)
                step.commit.positions.extend(positions_to_proto(offsets))
                step.commit.claims.extend(claims[bucket] for bucket in sorted(offsets))

    def done(self) -> None:
        """The transaction is committed: members may receive more."""
        for member, offsets, claims in self._commits.values():
            held = member.claims()
            member.done({b: offset for b, offset in offsets.items() if held.get(b) == claims[b]})


def described(step: carrier.Step, row: int) -> str:
    """A description of a step on a log for error messages."""
    if step.WhichOneof("change") == "append":
        return f"append to bucket {step.append.bucket} of {step.topic!r}"
    return f"commit of bucket {step.commit.positions[row].bucket} of {step.topic!r} by group {step.actor!r}"


def prepared_request(
    topic: str, name: str, request: carrier.TransactRequest, timeout: float
) -> log_pb2.LogPrepareRequest:
    """The steps of a transaction, to be stored under a name."""
    prepared = log_pb2.LogPrepareRequest(topic=topic, name=name, timeout_ms=round(timeout * 1_000))
    for step in request.steps:
        added = prepared.steps.add(topic=step.topic, actor=step.actor)
        if step.WhichOneof("change") == "append":
            added.append.CopyFrom(step.append)
        else:
            added.commit.CopyFrom(step.commit)
    return prepared
