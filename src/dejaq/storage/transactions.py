"""Atomic steps: changes to messages of one or several topics that are applied all together or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dejaq.domain.batch import Outcomes
from dejaq.domain.changes import Cancel, Create, Delete, Edit, Release
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Topic
from dejaq.errors import Code
from dejaq.storage.log.base import Append, OffsetCommit, check_bucket

# The possible changes of a transaction. A created row that exists with the same content is not refused.
Step = Create | Edit | Cancel | Delete | Release


@dataclass(frozen=True, slots=True)
class LogAppendStep:
    """A batch that is appended to a log. It has no name of its own and no rollback window."""

    topic: Topic
    batch: Append

    def refusal(self, now: int) -> Code | None:
        """Why it is not appended; raises for a bucket that the log does not have."""
        check_bucket(self.topic, self.batch.bucket)
        return Code.EXPIRED if self.batch.until is not None and now > self.batch.until else None


@dataclass(frozen=True, slots=True)
class LogCommitStep:
    """Offsets that a group commits."""

    topic: Topic
    group: str
    commits: Sequence[OffsetCommit]


LogStep = LogAppendStep | LogCommitStep


@dataclass(frozen=True, slots=True)
class Transaction:
    """Steps under one name, (`session`, `sequence`), so that a repeat is recognised.

    Every step is decided on the state before the transaction, so only one row may name a message.
    """

    session: ProducerSession
    sequence: int
    steps: Sequence[Step]
    # The same meaning as in a batch.
    acknowledged: int = 0
    check: int = 0
    # Steps on logs. They are numbered behind the other steps.
    log_steps: Sequence[LogStep] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a transaction: OK, ALREADY_EXISTS for a repeat, or the refusal of one row of one step."""

    code: Code = Code.OK
    step: int = 0
    row: int = 0


def first_refused(codes: Sequence[Code], number: int) -> Verdict | None:
    """The verdict for the first commit of a step that is refused."""
    return next((Verdict(code, number, row) for row, code in enumerate(codes) if code is not Code.OK), None)


class Names:
    """The messages that the steps so far have named, by topic and id."""

    def __init__(self) -> None:
        self._named: set[tuple[int, str]] = set()

    def refusal(self, step: int, topic: Topic, outcomes: Outcomes, ids: Iterable[tuple[int, str]]) -> Verdict | None:
        """The first row of a step that is refused or names a message again; `ids` yields rows with their ids."""
        codes = outcomes.failed
        for row, message_id in ids:
            name = (topic.number, message_id)
            if name in self._named:
                codes.setdefault(row, Code.DUPLICATE_IN_BATCH)
            self._named.add(name)
        if not codes:
            return None
        row = min(codes)
        return Verdict(codes[row], step, row)
