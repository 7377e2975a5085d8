"""Apply: one change inside a database transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from dejaq.domain.batch import Outcomes
from dejaq.domain.changes import (
    ByConsumer,
    Cancel,
    Change,
    Create,
    Delete,
    Edit,
    Extend,
    Recall,
    Redrive,
    Reject,
    Release,
)
from dejaq.domain.topic import Topic
from dejaq.storage.postgres.operations import creating, dead_letters, leasing, owning, settling
from dejaq.storage.postgres.operations.change import TopicTransaction as Changing

# The keys of a lease by row number; None when the lease is forgotten.
KeysOf = Callable[[Changing, Topic, int], Awaitable[Sequence[str] | None]]


async def apply(changing: Changing, change: Change, keys_of: KeysOf) -> Outcomes:
    """Make the change; raises a refusal before anything is altered."""
    match change:
        case Create():
            return (await creating.create(changing, change.batch))[0]
        case Edit():
            return await owning.edit(changing, change.owner, change.edits)
        case Cancel():
            return await owning.cancel(changing, change.owner, change.ids, change.versions, name=change.name)
        case Redrive():
            await dead_letters.check_live(changing, change.target)
            await leasing.expire_leases(changing)
            return await dead_letters.redrive(changing, change.target, change.ids)
    settlement = await settlement_of(changing, change, keys_of)
    match change:
        case Delete():
            await settling.delete(changing, settlement, change.handed_us)
        case Extend():
            await settling.extend(changing, settlement, change.expires)
        case Release():
            await settling.release(changing, settlement, change.ts, change.handed_us)
        case Recall():
            await settling.recall(changing, (settlement, change.expires))
        case Reject():
            await dead_letters.check_live(changing, change.dead_letter)
            await dead_letters.reject(changing, settlement, change.dead_letter, change.cause, change.handed_us)
    return settlement.outcomes


async def settlement_of(changing: Changing, change: ByConsumer, keys_of: KeysOf) -> settling.RowsToSettle:
    """The rows of its lease that a consumer wants to change."""
    keys = await keys_of(changing, change.topic, change.lease_id)
    return settling.RowsToSettle.of(change.lease_id, change.consumer, change.rows, keys)


def rows_changed(change: Change, outcomes: Outcomes) -> int:
    """About how many rows of the table the change has replaced or removed."""
    match change:
        case Create():
            return 0
        case Edit() | Cancel() | Redrive():
            asked = outcomes.count
        case _:
            asked = outcomes.count if change.rows is None else sum(end - start for start, end in change.rows)
    return max(0, asked - len(outcomes.codes))
