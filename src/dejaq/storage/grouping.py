"""Groups the changes of one call for stores in which every commit is a call to a server."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Sequence
from itertools import groupby

from dejaq.domain.batch import Outcomes
from dejaq.domain.changes import Change, Delete, Extend
from dejaq.errors import Refused


def grouped(changes: Sequence[Change]) -> Iterator[list[Change]]:
    """The changes in order; consecutive deletes by one consumer of one topic are grouped, as are extensions."""

    def group_of(numbered: tuple[int, Change]) -> tuple[object, ...]:
        number, change = numbered
        if isinstance(change, Delete | Extend):
            return type(change), change.topic.number, change.consumer
        return (number,)

    for _, group in groupby(enumerate(changes), group_of):
        yield [change for _, change in group]


async def attempt(work: Awaitable[Outcomes]) -> Outcomes | Refused:
    """The outcomes of a change, or its refusal; raises when the store cannot work or the result is unknown."""
    try:
        return await work
    except Refused as refusal:
        return refusal
