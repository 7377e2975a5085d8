"""The deduplication window: the natural ids that were created in it, also when their messages are gone."""

from __future__ import annotations

from collections.abc import Sequence

from dejaq.domain.batch import CreateBatch, Outcomes
from dejaq.domain.topic import Topic
from dejaq.domain.transitions import decide_create
from dejaq.errors import Code
from dejaq.storage.postgres.connection.failures import Overtaken
from dejaq.storage.postgres.operations.change import TopicTransaction

# Ids whose windows end within this part of a window are removed together.
_PARTS = 8


def has_window(topic: Topic, batch: CreateBatch) -> bool:
    """Whether the ids of a batch are remembered."""
    return bool(topic.settings.dedup_ms) and batch.ids is not None


async def check(change: TopicTransaction, batch: CreateBatch, places: Sequence[int], outcomes: Outcomes) -> None:
    """Find the rows whose ids were created within the window, among those without a message."""
    assert batch.ids is not None
    rows = {batch.ids[row]: row for row in range(len(batch)) if row not in outcomes.codes}
    if rows:
        asked = [places[row] for row in rows.values()], list(rows)
        for record in await change.link.fetch("created_before", *asked, change.now):
            code = decide_create(exists=False, same_content=False, created=True)
            outcomes.codes[rows[record["id"]]] = code


async def check_room(change: TopicTransaction, batch: CreateBatch, outcomes: Outcomes) -> None:
    """Refuse the rows beyond the limit of remembered ids."""
    rows = [row for row in range(len(batch)) if row not in outcomes.codes]
    if not rows:
        return
    known: int = await change.link.value("created_count", change.topic.number, change.now)
    for row in rows[max(0, change.topic.settings.max_dedup_ids - known) :]:
        outcomes.codes[row] = Code.LIMIT_EXCEEDED


async def note(change: TopicTransaction, batch: CreateBatch, places: Sequence[int], outcomes: Outcomes) -> None:
    """Remember the ids that are created in this transaction; raises `Overtaken` when another change has created one."""
    assert batch.ids is not None
    rows = [row for row in range(len(batch)) if row not in outcomes.codes]
    if not rows:
        return
    window = change.topic.settings.dedup_ms
    until, part = change.now + window, max(1, window // _PARTS)
    noted: int = await change.link.value(
        "note_created",
        [places[row] for row in rows],
        [batch.ids[row] for row in rows],
        until,
        (until // part + 1) * part,
        change.now,
        change.topic.number,
        change.link.shard,
    )
    if noted != len(rows):
        raise Overtaken("an id was created, and its message went, while this create was made")
