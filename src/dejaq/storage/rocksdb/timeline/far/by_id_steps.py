"""Changes of many ids, in steps between which other tasks run: the rows are found some at a time, and then changed.

What was found is used if it is still true: a run that nobody changed has the row in its place.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeGuard

from dejaq.domain.batch import Outcomes
from dejaq.domain.changes import Cancel, Change, Edit, Edits
from dejaq.errors import Refused
from dejaq.storage.rocksdb.timeline.far.far_rows import NO_ROWS, FoundAhead, joined_far
from dejaq.storage.rocksdb.timeline.far.finder import find_far

if TYPE_CHECKING:
    from dejaq.storage.rocksdb.timeline.topic_state import TopicState

Applied = tuple[list[Outcomes | Refused], "asyncio.Future[None] | None"]

# A change of more ids is made in several steps: their rows are found in some, and so many are changed in one. Smaller
# parts would cost half as much again, because each is a write with runs of its own.
LARGE_IDS, PART_IDS = 128, 1_000


def is_large(change: Change) -> TypeGuard[Edit | Cancel]:
    """Whether a change is made in several steps."""
    return isinstance(change, Edit | Cancel) and len(_ids_of(change)) > LARGE_IDS


def _ids_of(change: Edit | Cancel) -> list[str]:
    return list(change.edits.ids if isinstance(change, Edit) else change.ids)


def _parts_of(change: Edit | Cancel) -> Iterator[Edit | Cancel]:
    """Changes of some ids each, in order; a named cancel is one."""
    ids = _ids_of(change)
    step = len(ids) if isinstance(change, Cancel) and change.name is not None else PART_IDS
    for start in range(0, len(ids), step):
        cut = slice(start, start + step)
        if isinstance(change, Edit):
            yield replace(change, edits=_cut(change.edits, cut))
        else:
            versions = None if change.versions is None else change.versions[cut]
            yield replace(change, ids=ids[cut], versions=versions)


def _cut(edits: Edits, cut: slice) -> Edits:
    return replace(
        edits,
        ids=edits.ids[cut],
        ts=None if edits.ts is None else edits.ts[cut],
        bodies=None if edits.bodies is None else edits.bodies[cut],
        priorities=None if edits.priorities is None else edits.priorities[cut],
        headers=None if edits.headers is None else edits.headers[cut],
        versions=None if edits.versions is None else edits.versions[cut],
    )


async def _find_ahead(state: TopicState, change: Edit | Cancel, is_live: Callable[[TopicState], bool]) -> None:
    """Find the rows of a change, which follows at once; not those of a topic that is dropped meanwhile."""
    ids = change.edits.ids if isinstance(change, Edit) else change.ids
    parts = []
    start, finding = 0, state.runs.stored.finding
    while start < len(ids):
        if not is_live(state):
            return
        some = ids[start : start + finding.ids]
        began = time.thread_time()
        found = find_far(state, some)
        finding.took(len(some), time.thread_time() - began)
        parts.append(replace(found, items=found.items + start))
        start += len(some)
        await asyncio.sleep(0)
    state.runs.stored.ahead = FoundAhead(ids, joined_far(parts) if parts else NO_ROWS)


async def apply_in_parts(
    change: Edit | Cancel,
    state: Callable[[], TopicState],
    is_live: Callable[[TopicState], bool],
    apply: Callable[[Sequence[Change]], Applied],
) -> Outcomes | Refused:
    """Apply a change of many ids; the answer is that of all parts, once they are durable."""
    outcomes = Outcomes(0)
    refused: Refused | None = None
    waiting: list[asyncio.Future[None]] = []
    for part in _parts_of(change):
        await _find_ahead(state(), part, is_live)
        (answer,), durable = apply((part,))
        if durable is not None:
            waiting.append(durable)
        if isinstance(answer, Refused):
            if not outcomes.count:
                refused = answer
                break
            ids = part.edits.ids if isinstance(part, Edit) else part.ids
            answer = Outcomes(len(ids), dict.fromkeys(range(len(ids)), answer.code))
        codes = {row + outcomes.count: code for row, code in answer.codes.items()}
        outcomes = Outcomes(outcomes.count + answer.count, outcomes.codes | codes)
        await asyncio.sleep(0)
    for durable in waiting:
        await asyncio.shield(durable)
    return refused or outcomes
