"""Small edits and cancels by id that wait for each other: those of one kind, topic and owner become one change.

To search for one id costs nearly as much as to search for fifty, and each change has a write, a journal record and
counts of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeGuard, TypeVar

from dejaq.domain.batch import Outcomes
from dejaq.domain.changes import Cancel, Change, Edit, Edits
from dejaq.domain.context import CallContext
from dejaq.domain.topic import Durability, Topic
from dejaq.errors import Refused

Answer = asyncio.Future[list[Outcomes | Refused]]
Value = TypeVar("Value")
_Columns = Iterable[Sequence[Value] | None]
# Makes changes in one write: the answers, and what is to be durable before them.
ApplyChanges = Callable[
    [Sequence[Change], int, CallContext], tuple[Sequence[Outcomes | Refused], asyncio.Future[None] | None]
]

# A change of more ids, or with more bytes, is made by itself.
SMALL_IDS, _SMALL_BYTES = 64, 16 * 1024
# So many ids that wait are changed at once: to change them is one step of the event loop.
IDS_MAX = 128


def waits_for_others(changes: Sequence[Change]) -> TypeGuard[tuple[Edit | Cancel]]:
    """Whether this is one small change by id, of a kind that is made with others."""
    if len(changes) != 1:
        return False
    (change,) = changes
    if isinstance(change, Edit):
        edits = change.edits
        ids: Sequence[str] = edits.ids
        waits = not edits.large and sum([len(body or b"") for body in edits.bodies or ()]) <= _SMALL_BYTES
    elif isinstance(change, Cancel):
        ids, waits = change.ids, change.name is None
    else:
        return False
    waits = waits and change.topic.settings.durability is Durability.FSYNC
    return waits and 0 < len(ids) <= SMALL_IDS and len(set(ids)) == len(ids)


def _ids_of(change: Edit | Cancel) -> Sequence[str]:
    return change.edits.ids if isinstance(change, Edit) else change.ids


@dataclass(slots=True)
class ChangeGroup:
    """Changes of one kind by one owner in one topic, and what their callers wait for. No id occurs twice."""

    context: CallContext
    changes: list[Edit | Cancel] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    now: int = 0

    def joined(self) -> Change:
        """All of them as one change."""
        first, ids = self.changes[0], list(chain.from_iterable(map(_ids_of, self.changes)))
        if isinstance(first, Cancel):
            return Cancel(first.topic, first.owner, ids, _joined(one.versions for one in self._cancels))
        every = [one.edits for one in self._edits]
        edits = Edits(
            ids,
            ts=_joined(one.ts for one in every),
            bodies=_joined(one.bodies for one in every),
            priorities=_joined(one.priorities for one in every),
            headers=_joined(one.headers for one in every),
            versions=_joined(one.versions for one in every),
        )
        return Edit(first.topic, first.owner, edits)

    @property
    def _cancels(self) -> Iterable[Cancel]:
        return (change for change in self.changes if isinstance(change, Cancel))

    @property
    def _edits(self) -> Iterable[Edit]:
        return (change for change in self.changes if isinstance(change, Edit))

    def divided(self, answer: Outcomes | Refused) -> list[list[Outcomes | Refused]]:
        """The answer to each of them."""
        if isinstance(answer, Refused) or not answer.codes:
            return [[answer if isinstance(answer, Refused) else Outcomes(len(_ids_of(one)))] for one in self.changes]
        answers: list[list[Outcomes | Refused]] = []
        start = 0
        for one in self.changes:
            end = start + len(_ids_of(one))
            answers.append(
                [Outcomes(end - start, {row - start: code for row, code in answer.codes.items() if start <= row < end})]
            )
            start = end
        return answers


def _joined(columns: _Columns[Value]) -> list[Value] | None:
    """A column that either all changes have or none has."""
    joined = [column for column in columns if column is not None]
    return list(chain.from_iterable(joined)) if joined else None


def _kind_of(change: Edit | Cancel) -> tuple[bool, ...]:
    """Changes of one kind have the same columns."""
    if isinstance(change, Cancel):
        return (change.versions is None,)
    edits = change.edits
    return tuple(
        [one is None for one in (edits.ts, edits.bodies, edits.priorities, edits.headers, edits.versions)],
    )


class PendingById:
    """The changes by id that wait; `apply` makes one change in one write."""

    def __init__(self, apply: ApplyChanges) -> None:
        self._apply = apply
        # By the number of the topic, the owner, the caller, and the kind of change.
        self._groups: dict[tuple[int, str, str, tuple[bool, ...]], ChangeGroup] = {}
        # The ids of each topic: a second change with one of them comes behind the first.
        self._ids: dict[int, set[str]] = {}
        # The earliest new time in each topic.
        self._first_ts: dict[int, int] = {}

    def __bool__(self) -> bool:
        return bool(self._groups)

    def concerns(self, number: int) -> bool:
        """Whether a change of messages of the topic of this number waits."""
        return number in self._ids

    def names_any(self, number: int, ids: Iterable[str]) -> bool:
        """Whether a change of one of these messages waits."""
        return number in self._ids and not self._ids[number].isdisjoint(ids)

    def names_of(self, change: Edit | Cancel) -> bool:
        """Whether a change of one of the same messages waits."""
        return self.names_any(change.topic.number, _ids_of(change))

    def add(self, change: Edit | Cancel, answer: Answer, now: int, context: CallContext) -> bool:
        """Add a change of messages none of which has one; whether so many wait that they should be changed."""
        topic, ids = change.topic, _ids_of(change)
        place = (topic.number, change.owner, context.principal.recorded, _kind_of(change))
        group = self._groups.setdefault(place, ChangeGroup(context))
        group.changes.append(change)
        group.answers.append(answer)
        group.now = max(group.now, now)
        self._ids.setdefault(topic.number, set()).update(ids)
        times = [ts for ts in (change.edits.ts or ()) if ts is not None] if isinstance(change, Edit) else []
        if times:
            self._first_ts[topic.number] = min([*times, self._first_ts.get(topic.number, times[0])])
        return sum(map(len, self._ids.values())) >= IDS_MAX

    def earliest(self, topic: Topic) -> list[int]:
        """The earliest time that a message of a topic gets, if one gets another."""
        return [self._first_ts[topic.number]] if topic.number in self._first_ts else []

    def take(self, number: int | None) -> list[ChangeGroup]:
        """Remove what waits, for the topic of this number or for all."""
        taken: list[ChangeGroup] = []
        for place in [place for place in self._groups if number is None or place[0] == number]:
            taken.append(self._groups.pop(place))
            self._ids.pop(place[0], None)
            self._first_ts.pop(place[0], None)
        return taken

    def change(self, group: ChangeGroup) -> tuple[list[list[Outcomes | Refused]], asyncio.Future[None] | None]:
        """Make some changes; returns the answer to each, and what is to be durable before them.

        Each group has a write of its own, because it reads the results of the one before from the database.
        """
        (answer,), durable = self._apply((group.joined(),), group.now, group.context)
        return group.divided(answer), durable
