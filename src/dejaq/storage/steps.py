"""Atomic steps: changes to messages of one or several topics that are done together or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dejaq.domain.batch import CreateBatch, Outcomes, RowRange
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Topic
from dejaq.errors import Code
from dejaq.storage.edits import Edits


@dataclass(frozen=True, slots=True)
class CreateStep:
    """Create every row of a batch; a row that is already there with the same content is no refusal."""

    topic: Topic
    batch: CreateBatch


@dataclass(frozen=True, slots=True)
class EditStep:
    """Change messages of one owner."""

    topic: Topic
    owner: str
    edits: Edits


@dataclass(frozen=True, slots=True)
class CancelStep:
    """Remove messages of one owner, those with one of `versions` on the condition that it is theirs."""

    topic: Topic
    owner: str
    ids: Sequence[str]
    versions: Sequence[int | None] | None = None


@dataclass(frozen=True, slots=True)
class DeleteStep:
    """Remove rows of a live lease."""

    topic: Topic
    lease_id: int
    consumer: str
    rows: Sequence[RowRange] | None
    handed_us: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class ReleaseStep:
    """End the live lease of rows and put them at `ts`: one time, or one a row of the ranges."""

    topic: Topic
    lease_id: int
    consumer: str
    rows: Sequence[RowRange] | None
    ts: int | Sequence[int]
    handed_us: Sequence[int] = ()


Step = CreateStep | EditStep | CancelStep | DeleteStep | ReleaseStep


@dataclass(frozen=True, slots=True)
class Transaction:
    """Steps under one name, (`session`, `sequence`), so that a repeat is recognised.

    Every step is decided on the state before the transaction, so a message may be named by one row only.
    """

    session: ProducerSession
    sequence: int
    steps: Sequence[Step]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a transaction: OK, ALREADY_EXISTS for a repeat, or the refusal of one row of one step."""

    code: Code = Code.OK
    step: int = 0
    row: int = 0


class Names:
    """The messages that the steps looked at so far have named, by topic and id."""

    def __init__(self) -> None:
        self._named: set[tuple[int, str]] = set()

    def refusal(self, step: int, topic: Topic, outcomes: Outcomes, ids: Iterable[tuple[int, str]]) -> Verdict | None:
        """The first row of a step that is refused or names a message again; `ids` gives rows with their ids."""
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
