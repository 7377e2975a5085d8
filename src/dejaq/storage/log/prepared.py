"""Transactions on logs that are prepared: their steps are stored, and are committed or aborted later, by name.

The batches of a prepared transaction have their offsets at once, and committed readers stop before them until the
transaction is resolved. The offsets that it commits are decided at once too: until it is resolved, its buckets are
neither claimed nor committed by others, so that a commit of the transaction cannot fail. A transaction that is not
resolved until its deadline is aborted.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from zlib import crc32

from dejaq.errors import Code, Unavailable, error_of
from dejaq.storage.log.base import Appended
from dejaq.storage.transactions import LogAppendStep, LogStep

# The transactions of one log that are in doubt at one time.
IN_DOUBT_MAX = 1_000
# How long the outcome of a transaction is known, so that a repeat has the same answer.
OUTCOME_MS = 24 * 3_600_000
# When the window of a prepared batch ends.
NEVER_MS = 2**62


class PreparedState(StrEnum):
    """What became of a transaction."""

    IN_DOUBT = "in doubt"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class PreparedBatch:
    """A batch that was appended: the topic by number."""

    topic: int
    bucket: int
    base: int
    count: int


@dataclass(frozen=True, slots=True)
class PreparedCommit:
    """An offset that a group commits: the topic by number."""

    topic: int
    group: str
    bucket: int
    offset: int
    claim: int


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """A prepared transaction. Its name belongs to a log."""

    name: str
    prepared_ms: int
    deadline_ms: int
    batches: tuple[PreparedBatch, ...] = ()
    commits: tuple[PreparedCommit, ...] = ()
    # Of the steps: a repeat has the same.
    check: int = 0
    state: PreparedState = PreparedState.IN_DOUBT

    @classmethod
    def of(
        cls,
        name: str,
        steps: Sequence[LogStep],
        places: Sequence[Appended],
        *,
        deadline_ms: int,
        now: int,
        check: int,
    ) -> PreparedTransaction:
        """The record of steps whose batches are at these places."""
        at = iter(places)
        batches, commits = [], []
        for step in steps:
            if isinstance(step, LogAppendStep):
                batch = step.batch
                batches.append(PreparedBatch(step.topic.number, batch.bucket, next(at).base, batch.count))
            else:
                number, group = step.topic.number, step.group
                commits += [PreparedCommit(number, group, one.bucket, one.offset, one.claim) for one in step.commits]
        return cls(name, now, deadline_ms, tuple(batches), tuple(commits), check)

    @property
    def count(self) -> int:
        """The messages of its batches."""
        return sum(batch.count for batch in self.batches)

    def pack(self) -> bytes:
        """The record as it is stored."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def unpack(cls, record: bytes) -> PreparedTransaction:
        """A stored record."""
        values = json.loads(record)
        values["batches"] = tuple(PreparedBatch(**one) for one in values["batches"])
        values["commits"] = tuple(PreparedCommit(**one) for one in values["commits"])
        return cls(**values | {"state": PreparedState(values["state"])})

    def forgotten(self, now: int) -> bool:
        """Whether its outcome need not be known any more."""
        return self.state is not PreparedState.IN_DOUBT and self.deadline_ms + OUTCOME_MS < now

    def resolved(self, *, commit: bool, now: int) -> PreparedTransaction | None:
        """The record after it was resolved; None when it was before, in the same way.

        Raises TOO_LATE when it was resolved the other way. A commit after the deadline aborts it.
        """
        wanted = PreparedState.COMMITTED if commit else PreparedState.ABORTED
        if self.state is wanted:
            return None
        if self.state is not PreparedState.IN_DOUBT:
            raise error_of(Code.TOO_LATE, f"transaction {self.name!r} was {self.state}")
        return replace(self, state=PreparedState.ABORTED if now > self.deadline_ms else wanted)


def held_by(name: str) -> Unavailable:
    """The error for a bucket of a group that a prepared transaction holds."""
    return Unavailable(f"the prepared transaction {name!r} commits this bucket; commit or abort it first")


def check_answer(found: PreparedTransaction, *, commit: bool) -> None:
    """Raise TOO_LATE for a commit that came after the deadline, and has aborted the transaction."""
    if commit and found.state is PreparedState.ABORTED:
        raise error_of(Code.TOO_LATE, f"transaction {found.name!r} was aborted at its deadline")


def check_of(steps: Sequence[LogStep]) -> int:
    """A check value of steps."""
    value = 0
    for step in steps:
        if isinstance(step, LogAppendStep):
            head = f"a {step.topic.number} {step.batch.bucket} {step.batch.count} "
            value = crc32(step.batch.records, crc32(head.encode(), value))
        else:
            offsets = [(one.bucket, one.offset, one.claim) for one in step.commits]
            value = crc32(f"c {step.topic.number} {step.group} {offsets} ".encode(), value)
    return value


def is_repeat(known: PreparedTransaction | None, in_doubt: int, name: str, check: int) -> bool:
    """Whether the same transaction was prepared before; raises for a name that is taken, and above the limit."""
    if known is not None and known.check == check and known.state is PreparedState.IN_DOUBT:
        return True
    if known is not None:
        raise error_of(Code.BATCH_NAME_TAKEN, f"another transaction has the name {name!r}; it is {known.state}")
    if in_doubt >= IN_DOUBT_MAX:
        raise error_of(Code.LIMIT_EXCEEDED, f"a log has at most {IN_DOUBT_MAX} transactions in doubt; resolve some")
    return False
