"""Steps of transactions on logs, at the broker."""

from __future__ import annotations

from collections.abc import Sequence

from dejaq import limits
from dejaq.broker.log.appending import count_of
from dejaq.broker.log.topics import LogTopics
from dejaq.errors import InvalidArgument
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1 import log_pb2
from dejaq.storage.log.base import Append, OffsetCommit, check_bucket
from dejaq.storage.transactions import LogAppendStep, LogCommitStep, LogStep

_CHANGES = ("append", "commit")


def is_log_step(proto: carrier.Step) -> bool:
    """Whether a step is one on a log."""
    return proto.WhichOneof("change") in _CHANGES


def log_step_of(logs: LogTopics, proto: carrier.Step | log_pb2.LogStep) -> LogStep:
    """A step as the storage takes it; raises when no storage may take it."""
    topic = logs.catalog.live_log(proto.topic)
    if proto.WhichOneof("change") not in _CHANGES:
        raise InvalidArgument("a step on a log needs a change: append or commit")
    if proto.WhichOneof("change") == "append":
        check_bucket(topic, proto.append.bucket)
        records = proto.append.records
        return LogAppendStep(topic, Append(proto.append.bucket, records, count_of(topic, records)))
    if not 1 <= len(proto.actor) <= limits.GROUP_CHARS_MAX or not proto.actor.isprintable():
        raise InvalidArgument(f"a commit names its group in 1 to {limits.GROUP_CHARS_MAX} printable characters")
    request = proto.commit
    if len(request.claims) != len(request.positions):
        raise InvalidArgument("a commit has a claim for each position")
    commits = [
        OffsetCommit(position.bucket, position.offset, claim)
        for position, claim in zip(request.positions, request.claims, strict=True)
    ]
    for one in commits:
        check_bucket(topic, one.bucket)
    return LogCommitStep(topic, proto.actor, commits)


def log_steps_done(logs: LogTopics, steps: Sequence[LogStep]) -> None:
    """Wake the readers of what a transaction has appended."""
    for step in steps:
        if isinstance(step, LogAppendStep):
            logs.appended(step.topic, {step.batch.bucket}, step.batch.count)
