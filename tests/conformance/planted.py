"""R19: storages with one bug each. Each wraps a real storage, so that every backend can have every bug."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dejaq import limits
from dejaq.domain.batch import LeaseRequest, LeaseSet, Outcomes
from dejaq.domain.changes import Cancel, Change, Create, Delete, Edit, Edits, Extend, Recall, Redrive, Reject, Release
from dejaq.domain.context import DIRECT_CALL, CallContext
from dejaq.domain.topic import Topic
from dejaq.errors import Code, error_of
from dejaq.storage.base import Filter, Page, apply_one
from dejaq.storage.transactions import Transaction, Verdict
from dejaq.testing.conformance import StorageFactory


class Around:
    """A storage that forwards to the storage that it wraps; `memory` keeps its content over a restart."""

    def __init__(self, inner: Any, memory: dict[str, Any]) -> None:
        self.inner = inner
        self.memory = memory

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def apply(self, changes: Sequence[Change], now: int, context: CallContext) -> list[Outcomes]:
        """Apply each change by the bug's own method if it has one, otherwise by the wrapped storage."""
        return [await self._apply(change, now, context) for change in changes]

    async def _apply(self, change: Change, now: int, context: CallContext) -> Outcomes:
        method = getattr(type(self), type(change).__name__.lower(), None)
        if method is None:
            return await apply_one(self.inner, change, now, context)
        outcomes: Outcomes = await method(self, change, now, context)
        return outcomes


class NoVersionCheck(Around):
    """A consumer that once held a message may still settle it after another consumer has leased it."""

    async def lease(self, topic: Topic, request: LeaseRequest, now: int, context: CallContext) -> LeaseSet | None:
        lease = await self.inner.lease(topic, request, now, context)
        if lease is not None:
            numbers = lease.rows or range(len(lease))
            self.memory[str(lease.lease_id)] = dict(zip(numbers, lease.ids(), strict=True))
        return lease

    async def delete(self, change: Delete, now: int, context: CallContext) -> Outcomes:
        topic, lease_id, consumer, rows = change.topic, change.lease_id, change.consumer, change.rows
        outcomes = await apply_one(self.inner, Delete(topic, lease_id, consumer, rows), now, context)
        known = self.memory.get(str(lease_id), {})
        for row in [row for row in outcomes.codes if row in known]:
            (holder,) = await self.inner.holders(topic, [known[row]], now)
            if holder is not None:
                place = [(holder.row, holder.row + 1)]
                await apply_one(self.inner, Delete(topic, holder.lease_id, holder.consumer, place), now, context)
                del outcomes.codes[row]
        return outcomes


class LeaseOverlap(Around):
    """A live lease does not prevent another lease of the same message."""

    async def lease(self, topic: Topic, request: LeaseRequest, now: int, context: CallContext) -> LeaseSet | None:
        for lease_id, consumer in self.memory.setdefault("given", []):
            await apply_one(self.inner, Recall(topic, lease_id, consumer, None), now, context)
        lease = await self.inner.lease(topic, request, now, context)
        if lease is not None:
            self.memory["given"].append((lease.lease_id, lease.consumer))
        return lease


class SkippedBucket(Around):
    """No lease ever includes bucket 0."""

    async def lease(self, topic: Topic, request: LeaseRequest, now: int, context: CallContext) -> LeaseSet | None:
        buckets = [bucket for bucket in request.buckets if bucket != 0]
        return await self.inner.lease(topic, replace(request, buckets=buckets), now, context)


class EarlyByOne(Around):
    """A message that is due in the next millisecond is leased now."""

    async def lease(self, topic: Topic, request: LeaseRequest, now: int, context: CallContext) -> LeaseSet | None:
        return await self.inner.lease(topic, replace(request, until=max(request.until, now) + 1), now, context)


class LostDelete(Around):
    """A delete reports success, but the row stays."""

    async def delete(self, change: Delete, now: int, context: CallContext) -> Outcomes:
        topic, lease_id, consumer, rows = change.topic, change.lease_id, change.consumer, change.rows
        return await apply_one(self.inner, Extend(topic, lease_id, consumer, rows, now + 30_000), now, context)


class ForgottenSessions(Around):
    """After a restart, a repeated batch of natural ids is not recognized as a repeat."""

    async def open(self, now: int) -> None:
        self.memory["opened"] = self.memory.get("opened", -1) + 1
        await self.inner.open(now)

    async def create(self, change: Create, now: int, context: CallContext) -> Outcomes:
        topic, batch = change.topic, change.batch
        if batch.ids is not None:
            number = batch.session.number + 1_000_000 * self.memory["opened"]
            batch = replace(batch, session=replace(batch.session, number=number))
        return await apply_one(self.inner, Create(topic, batch), now, context)


class EveryTimeCompared(Around):
    """A repeat with a relative time is refused, because its time is a later one."""

    async def create(self, change: Create, now: int, context: CallContext) -> Outcomes:
        batch = replace(change.batch, relative_rows=())
        return await apply_one(self.inner, Create(change.topic, batch), now, context)


class NoSessions(Around):
    """Batches of natural ids have no name: a repeat is recognized only while its ids exist."""

    async def create(self, change: Create, now: int, context: CallContext) -> Outcomes:
        topic, batch = change.topic, change.batch
        if batch.ids is not None:
            number = self.memory["made"] = self.memory.get("made", 0) + 1
            batch = replace(batch, session=replace(batch.session, number=number))
        return await apply_one(self.inner, Create(topic, batch), now, context)


class ForgottenLeases(Around):
    """A restart releases every leased message."""

    async def open(self, now: int) -> None:
        await self.inner.open(now)
        for topic, lease_id, consumer in self.memory.setdefault("given", []):
            await apply_one(self.inner, Recall(topic, lease_id, consumer, None), now, DIRECT_CALL)

    async def lease(self, topic: Topic, request: LeaseRequest, now: int, context: CallContext) -> LeaseSet | None:
        lease = await self.inner.lease(topic, request, now, context)
        if lease is not None:
            self.memory["given"].append((topic, lease.lease_id, lease.consumer))
        return lease


class UncountedAttempts(Around):
    """Every lease reports the first attempt."""

    async def lease(self, topic: Topic, request: LeaseRequest, now: int, context: CallContext) -> LeaseSet | None:
        lease = await self.inner.lease(topic, request, now, context)
        return replace(lease, attempts=None) if lease is not None else None


class RenumberedRows(Around):
    """A consumer that reconnects gets its rows under new numbers."""

    async def leases_of(self, topic: Topic, consumer: str, now: int) -> list[LeaseSet]:
        return [replace(one, rows=None) for one in await self.inner.leases_of(topic, consumer, now)]


class ExtendsEverything(Around):
    """Extending some rows of a lease extends all of them."""

    async def extend(self, change: Extend, now: int, context: CallContext) -> Outcomes:
        topic, lease_id, consumer, rows, expires = (
            change.topic,
            change.lease_id,
            change.consumer,
            change.rows,
            change.expires,
        )
        outcomes = await apply_one(self.inner, Extend(topic, lease_id, consumer, rows, expires), now, context)
        await apply_one(self.inner, Extend(topic, lease_id, consumer, None, expires), now, context)
        return outcomes


class IgnoredEnds(Around):
    """A recall ends leases that a later session continues."""

    async def recall(self, change: Recall, now: int, context: CallContext) -> Outcomes:
        return await apply_one(self.inner, replace(change, expires=None), now, context)


class RecallCounts(Around):
    """A recall counts as a release: the attempt that user code never saw is counted."""

    async def recall(self, change: Recall, now: int, context: CallContext) -> Outcomes:
        topic, lease_id, consumer, rows = change.topic, change.lease_id, change.consumer, change.rows
        return await apply_one(self.inner, Release(topic, lease_id, consumer, rows, now), now, context)


class AnyoneCancels(Around):
    """Every caller is treated as the owner."""

    async def cancel(self, change: Cancel, now: int, context: CallContext) -> Outcomes:
        topic, owner, ids = change.topic, change.owner, change.ids
        outcomes = Outcomes(len(ids))
        for row, one in enumerate(ids):
            (found,) = await self.inner.get(topic, [one], now)
            code = (
                await apply_one(
                    self.inner, Cancel(topic, found.producer_group if found else owner, [one]), now, context
                )
            )[0]
            if code is not Code.OK:
                outcomes.codes[row] = code
        return outcomes


class UnconditionalEdits(Around):
    """An edit ignores the version on which it is conditional."""

    async def edit(self, change: Edit, now: int, context: CallContext) -> Outcomes:
        topic, owner, edits = change.topic, change.owner, change.edits
        return await apply_one(self.inner, Edit(topic, owner, replace(edits, versions=None)), now, context)


class LateBound(Around):
    """`next_ts` returns a time that is one millisecond too late."""

    async def next_ts(self, topic: Topic, buckets: Sequence[int], now: int) -> int | None:
        bound = await self.inner.next_ts(topic, buckets, now)
        return bound + 1 if bound is not None else None


class StaleCount(Around):
    """Counts are those of the previous millisecond."""

    async def count(self, topic: Topic, where: Filter, now: int) -> int:
        return await self.inner.count(topic, where, now - 1)


class InclusiveEnd(Around):
    """A histogram includes messages exactly at its end."""

    async def histogram(self, topic: Topic, where: Filter, step: int, now: int) -> list[tuple[int, int]]:
        end = min(where.end + 1, limits.TS_MS_MAX)
        return await self.inner.histogram(topic, replace(where, end=end), step, now)


class SkippingPages(Around):
    """Each page except the first leaves out one message."""

    async def browse(self, topic: Topic, where: Filter, cursor: bytes | None, limit: int, now: int) -> Page:
        page = await self.inner.browse(topic, where, cursor, limit, now)
        return replace(page, messages=page.messages[1:]) if cursor is not None and len(page.messages) > 1 else page


class CutBodies(Around):
    """A body larger than the inline limit is truncated."""

    async def create(self, change: Create, now: int, context: CallContext) -> Outcomes:
        topic, batch = change.topic, change.batch
        bodies = [body[: limits.INLINE_BODY_BYTES_MAX] for body in batch.bodies]
        return await apply_one(self.inner, Create(topic, replace(batch, bodies=bodies)), now, context)


class ReusedNumbers(Around):
    """The number of a dropped topic is used again."""

    async def next_topic_number(self) -> int:
        return max((topic.number for topic in await self.inner.topics()), default=0) + 1


class StepByStep(Around):
    """A transaction applies its steps one by one and stops at the first refusal."""

    async def transact(self, transaction: Transaction, now: int, context: CallContext) -> Verdict:
        for number, step in enumerate(transaction.steps):
            part = replace(transaction, sequence=transaction.sequence * 100 + number, steps=[step])
            verdict = await self.inner.transact(part, now, context)
            if not verdict.code.succeeded:
                return replace(verdict, step=number)
        return verdict


class NamelessTransactions(Around):
    """A repeated transaction is not recognized as a repeat."""

    async def transact(self, transaction: Transaction, now: int, context: CallContext) -> Verdict:
        number = self.memory["done"] = self.memory.get("done", 0) + 1
        return await self.inner.transact(replace(transaction, sequence=number), now, context)


class DroppedDead(Around):
    """A message that was leased too often is deleted instead of moved to the dead-letter topic."""

    async def lease(self, topic: Topic, request: LeaseRequest, now: int, context: CallContext) -> LeaseSet | None:
        lease = await self.inner.lease(topic, request, now, context)
        if lease is not None and lease.dead_lettered and request.dead_letter is not None:
            page = await self.inner.browse(request.dead_letter, Filter(), None, 1_000, now)
            for message in page.messages:
                await apply_one(
                    self.inner, Cancel(request.dead_letter, message.producer_group, [message.id]), now, context
                )
        return lease


class IgnoredLimit(Around):
    """A message may be leased without any limit."""

    async def lease(self, topic: Topic, request: LeaseRequest, now: int, context: CallContext) -> LeaseSet | None:
        return await self.inner.lease(topic, replace(request, dead_letter=None), now, context)


class RejectDeletes(Around):
    """A rejected message is deleted."""

    async def reject(self, change: Reject, now: int, context: CallContext) -> Outcomes:
        topic, lease_id, consumer, rows = change.topic, change.lease_id, change.consumer, change.rows
        return await apply_one(self.inner, Delete(topic, lease_id, consumer, rows), now, context)


class RedriveDrops(Around):
    """A redriven message is removed even when its id exists in the target topic."""

    async def redrive(self, change: Redrive, now: int, context: CallContext) -> Outcomes:
        topic, target, ids = change.topic, change.target, change.ids
        outcomes = await apply_one(self.inner, Redrive(topic, target, ids), now, context)
        for row, code in outcomes.codes.items():
            (found,) = await self.inner.get(topic, [ids[row]], now)
            if code is Code.ID_TAKEN and found is not None:
                await apply_one(self.inner, Cancel(topic, found.producer_group, [ids[row]]), now, context)
        return outcomes


class NoBackoff(Around):
    """A message whose lease expired is due at the end of that lease, without the topic's back-off."""

    async def lease(self, topic: Topic, request: LeaseRequest, now: int, context: CallContext) -> LeaseSet | None:
        settings = replace(topic.settings, expiry_backoff="")
        plain = replace(topic, settings=settings)
        await self.inner.put_topic(plain, context)
        try:
            return await self.inner.lease(plain, request, now, context)
        finally:
            await self.inner.put_topic(topic, context)


class ForgottenPriority(Around):
    """A released message loses its priority and gets the default one."""

    async def release(self, change: Release, now: int, context: CallContext) -> Outcomes:
        topic, lease_id, consumer, rows, ts = (
            change.topic,
            change.lease_id,
            change.consumer,
            change.rows,
            change.ts,
        )
        held = [one for one in await self.inner.leases_of(topic, consumer, now) if one.lease_id == lease_id]
        outcomes = await apply_one(self.inner, Release(topic, lease_id, consumer, rows, ts), now, context)
        for lease in held:
            for message in await self.inner.get(topic, lease.ids(), now):
                if message is not None and not message.lock_consumer:
                    edits = Edits([message.id], priorities=[0])
                    await apply_one(self.inner, Edit(topic, message.producer_group, edits), now, context)
        return outcomes


class IgnoredPriorities(Around):
    """A topic ordered by priority treats every message as one of default priority."""

    async def create(self, change: Create, now: int, context: CallContext) -> Outcomes:
        topic, batch = change.topic, change.batch
        return await apply_one(
            self.inner, Create(topic, replace(batch, priorities=None) if topic.by_priority else batch), now, context
        )


class NobodyRecorded(Around):
    """Every change is recorded as one of the anonymous principal."""

    async def _apply(self, change: Change, now: int, context: CallContext) -> Outcomes:
        return await apply_one(self.inner, change, now, DIRECT_CALL)


class TakenBodies(Around):
    """The reclaim removes every large body, even those that messages refer to."""

    @property
    def bodies(self) -> Any:
        return _Taking(self.inner.bodies, self.memory)


class _Taking(Around):
    async def reclaim(self, now: int) -> int:
        self.memory["taken"] = True
        return await self.inner.reclaim(now)

    async def part(self, *asked: Any) -> bytes:
        if "taken" in self.memory:
            raise error_of(Code.BODY_MISSING)
        return await self.inner.part(*asked)


class LeftBodies(Around):
    """Large bodies that no message refers to are never removed."""

    @property
    def bodies(self) -> Any:
        return _Leaving(self.inner.bodies, self.memory)


class _Leaving(Around):
    async def reclaim(self, now: int) -> int:
        return 0


# For each bug: a check that finds it, and whether the model test can find it.
BUGS: dict[type[Around], tuple[str, bool]] = {
    NoVersionCheck: ("settle.a_stale_holder_is_fenced_off", True),
    LeaseOverlap: ("leases.a_live_lease_excludes_everyone", True),
    SkippedBucket: ("leases.only_the_asked_buckets", True),
    EarlyByOne: ("leases.never_early", True),
    LostDelete: ("settle.delete_removes", True),
    ForgottenSessions: ("restart.a_repeat_is_known_after_a_restart", True),
    EveryTimeCompared: ("create.a_relative_time_is_not_compared", True),
    NoSessions: ("sessions.a_repeat_is_known_after_delivery", True),
    ForgottenLeases: ("restart.leases_survive", True),
    UncountedAttempts: ("leases.a_lost_message_is_leased_again", True),
    RenumberedRows: ("leases.leases_of_gives_live_leases_back", True),
    ExtendsEverything: ("settle.extend_moves_the_asked_rows_only", True),
    IgnoredEnds: ("settle.a_recall_ends_no_lease_that_was_continued", False),
    RecallCounts: ("settle.recall_undoes_a_lease", True),
    AnyoneCancels: ("owner.only_the_owner_changes", True),
    UnconditionalEdits: ("owner.versions_make_an_edit_conditional", True),
    LateBound: ("leases.following_next_ts_finds_everything_on_time", True),
    StaleCount: ("queries.every_status_is_counted", True),
    InclusiveEnd: ("queries.histogram_counts_each_step", True),
    SkippingPages: ("queries.browse_is_in_order_of_time_and_id", True),
    CutBodies: ("create.bodies_of_every_size_come_back", True),
    StepByStep: ("steps.a_refusal_undoes_everything", True),
    NamelessTransactions: ("steps.a_repeat_is_known_by_its_name", True),
    DroppedDead: ("dead_letters.a_message_leased_too_often_is_moved", True),
    IgnoredLimit: ("dead_letters.a_message_leased_too_often_is_moved", True),
    RejectDeletes: ("dead_letters.reject_moves_at_once", True),
    RedriveDrops: ("dead_letters.redrive_meets_conditions", False),
    NoBackoff: ("dead_letters.a_lost_message_waits_for_its_back_off", True),
    ForgottenPriority: ("priorities.a_release_keeps_the_priority", True),
    IgnoredPriorities: ("priorities.the_lowest_priority_goes_first", True),
    TakenBodies: ("large.a_large_body_is_kept_by_its_message", True),
    LeftBodies: ("large.an_upload_nobody_refers_to_is_removed", True),
    NobodyRecorded: ("journal.every_record_names_the_principal", False),
    ReusedNumbers: ("topics.numbers_are_never_used_again", False),
}


def planted(bug: type[Around], factory: StorageFactory) -> StorageFactory:
    """The same storage, with the bug."""
    memory: dict[str, Any] = {}
    return lambda: bug(factory(), memory)  # type: ignore[return-value]
