"""What a call needs: one or more needs, each of which any of several claims satisfies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from dejaq.domain.topic import Topic
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1 import log_pb2
from dejaq.protocol.v1 import overseer_pb2 as overseer
from dejaq.protocol.v1 import rights_pb2 as rights
from dejaq.security.rights.matching import EVERY_GROUP, SOME_GROUP
from dejaq.security.rights.operations import Operation
from dejaq.security.rights.rules import ANYTHING


class Claim(NamedTuple):
    """One operation on one topic, as a producer group where the operation is done as one."""

    operation: Operation
    topic: str
    group: str = EVERY_GROUP


# Any one of its claims is enough.
Need = tuple[Claim, ...]
OPERATING: Need = (Claim(Operation.OPERATE, ANYTHING),)
# The fields of a filter that the right to inspect allows. A condition on any other field could reveal a body, so it
# needs the right to read.
UNMASKED_FIELDS = frozenset({"start", "end", "status", "owner", "consumer", "priority_min", "priority_max", "headers"})


class Facts(Protocol):
    """What the needs of a call depend on besides its request."""

    def topic(self, name: str) -> Topic | None:
        """The topic of this name, in any state."""

    def topic_of_snapshot(self, snapshot: str) -> str | None:
        """The topic of an open snapshot."""


Needs = Callable[[Any, Facts], Iterator[Need]]


def on_topic(*operations: Operation) -> Needs:
    """Any of these operations on the topic that the request names."""

    def needs(request: Any, facts: Facts) -> Iterator[Need]:
        yield tuple(Claim(operation, request.topic) for operation in operations)

    return needs


def on_name(operation: Operation) -> Needs:
    """An operation on the topic that is the `name` of the request."""

    def needs(request: Any, facts: Facts) -> Iterator[Need]:
        yield (Claim(operation, request.name),)

    return needs


def operating(request: Any, facts: Facts) -> Iterator[Need]:
    """The right `operate`."""
    yield OPERATING


def inspecting_filtered(request: Any, facts: Facts) -> Iterator[Need]:
    """`inspect`, and `read` when the filter has a condition on anything that is masked."""
    yield (Claim(Operation.INSPECT, request.topic),)
    yield from _of_filter(request.filter, request.topic)


def _of_filter(where: carrier.Filter, topic: str) -> Iterator[Need]:
    if any(field.name not in UNMASKED_FIELDS for field, _ in where.ListFields()):
        yield (Claim(Operation.READ, topic),)


def scanning(request: carrier.ScanRequest, facts: Facts) -> Iterator[Need]:
    """The same for the topic of a snapshot; a snapshot that is unknown gets its answer from the call."""
    topic = facts.topic_of_snapshot(request.snapshot)
    if topic is not None:
        yield (Claim(Operation.INSPECT, topic),)
        yield from _of_filter(request.filter, topic)


def closing_snapshot(request: carrier.CloseSnapshotRequest, facts: Facts) -> Iterator[Need]:
    """`inspect`, as for opening it."""
    topic = facts.topic_of_snapshot(request.snapshot)
    if topic is not None:
        yield (Claim(Operation.INSPECT, topic),)


def sending_body(request: carrier.UploadHead, facts: Facts) -> Iterator[Need]:
    """`produce` or `change` as any producer group: a body belongs to no group before a message refers to it."""
    yield tuple(Claim(operation, request.topic, SOME_GROUP) for operation in (Operation.PRODUCE, Operation.CHANGE))


def transacting(request: carrier.TransactRequest, facts: Facts) -> Iterator[Need]:
    """What each step needs, as the producer group or consumer that it names."""
    for step in request.steps:
        change = step.WhichOneof("change")
        if change == "settle":
            yield (Claim(Operation.CONSUME, step.topic),)
        elif change == "create":
            yield (Claim(Operation.PRODUCE, step.topic, step.actor),)
        elif change == "append":
            yield (Claim(Operation.PRODUCE, step.topic, SOME_GROUP),)
        elif change == "commit":
            yield (Claim(Operation.CONSUME, step.topic),)
        else:
            yield (Claim(Operation.CHANGE, step.topic, step.actor),)


def preparing(request: log_pb2.LogPrepareRequest, facts: Facts) -> Iterator[Need]:
    """`change` on the log that has the name, which resolving needs too, and what each step needs."""
    yield (Claim(Operation.CHANGE, request.topic),)
    for step in request.steps:
        if step.WhichOneof("change") == "append":
            yield (Claim(Operation.PRODUCE, step.topic, SOME_GROUP),)
        else:
            yield (Claim(Operation.CONSUME, step.topic),)


def redriving(request: carrier.RedriveRequest, facts: Facts) -> Iterator[Need]:
    """`admin` on the dead-letter topic, and `produce` on the target as every group: messages keep their owners."""
    yield (Claim(Operation.ADMIN, request.topic),)
    yield (Claim(Operation.PRODUCE, request.target, EVERY_GROUP),)


def scheduling(request: Any, facts: Facts) -> Iterator[Need]:
    """`schedule`, and `produce` as the group of each schedule."""
    yield (Claim(Operation.SCHEDULE, request.topic),)
    for group in {schedule.group if schedule.HasField("group") else "cron" for schedule in request.schedules}:
        yield (Claim(Operation.PRODUCE, request.topic, group),)


def creating_topic(request: overseer.CreateTopicRequest, facts: Facts) -> Iterator[Need]:
    """`create`; a dead-letter topic of another topic needs `admin` on that one, since its messages go there."""
    yield (Claim(Operation.CREATE, request.name),)
    source = request.name.removesuffix(".dead")
    if source != request.name and facts.topic(source) is not None:
        yield (Claim(Operation.ADMIN, source),)
    yield from _of_dead_letters(request, facts)


def editing_topic(request: overseer.EditTopicRequest, facts: Facts) -> Iterator[Need]:
    """`admin`, and the right to send dead letters to the topic that is to have them."""
    yield (Claim(Operation.ADMIN, request.name),)
    if request.settings.HasField("dead_letter"):
        yield from _of_dead_letters(request, facts)


def _of_dead_letters(request: Any, facts: Facts) -> Iterator[Need]:
    """Dead letters of every owner arrive in the topic, which is created where it does not exist."""
    named = request.settings.dead_letter
    target = named or f"{request.name}.dead"
    if facts.topic(target) is not None:
        yield (Claim(Operation.PRODUCE, target, EVERY_GROUP),)
    elif named:
        yield (Claim(Operation.CREATE, target),)


def putting_rule(request: rights.PutRuleRequest, facts: Facts) -> Iterator[Need]:
    """`operate`; or `admin` on the one topic of the rule; or that the rule is about topics of the caller."""
    topic = request.rule.topic
    # A prefix keeps its mark, so that neither a rule about one topic nor the creator of one matches it.
    mine = Claim(Operation.ADMIN, topic)
    local = Operation.OPERATE not in request.rule.operations and (
        not topic.endswith(ANYTHING) or (topic.startswith("~") and "/" in topic)
    )
    yield (*OPERATING, mine) if local else OPERATING
