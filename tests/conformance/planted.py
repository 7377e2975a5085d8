"""R19: storages with one bug each, planted around a real one, so that every backend can have them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dejaq import limits
from dejaq.domain.batch import CreateBatch, LeaseRequest, LeaseSet, Outcomes
from dejaq.domain.topic import Topic
from dejaq.errors import Code, error_of
from dejaq.storage.base import Edits, Filter, Page
from dejaq.storage.steps import Transaction, Verdict
from dejaq.testing.conformance import StorageFactory


class Around:
    """A storage that does what the one inside does; `memory` outlives a restart."""

    def __init__(self, inner: Any, memory: dict[str, Any]) -> None:
        self.inner = inner
        self.memory = memory

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class NoVersionCheck(Around):
    """Whoever once held a message settles it, whoever holds it now."""

    async def lease(self, topic: Topic, request: LeaseRequest, now: int) -> LeaseSet | None:
        lease = await self.inner.lease(topic, request, now)
        if lease is not None:
            numbers = lease.rows or range(len(lease))
            self.memory[str(lease.lease_id)] = dict(zip(numbers, lease.ids(), strict=True))
        return lease

    async def delete(self, topic: Topic, lease_id: int, consumer: str, rows: Any, now: int) -> Outcomes:
        outcomes = await self.inner.delete(topic, lease_id, consumer, rows, now)
        known = self.memory.get(str(lease_id), {})
        for row in [row for row in outcomes.codes if row in known]:
            (holder,) = await self.inner.holders(topic, [known[row]], now)
            if holder is not None:
                place = [(holder.row, holder.row + 1)]
                await self.inner.delete(topic, holder.lease_id, holder.consumer, place, now)
                del outcomes.codes[row]
        return outcomes


class LeaseOverlap(Around):
    """A live lease does not keep others from leasing the message."""

    async def lease(self, topic: Topic, request: LeaseRequest, now: int) -> LeaseSet | None:
        for lease_id, consumer in self.memory.setdefault("given", []):
            await self.inner.recall(topic, lease_id, consumer, None, now)
        lease = await self.inner.lease(topic, request, now)
        if lease is not None:
            self.memory["given"].append((lease.lease_id, lease.consumer))
        return lease


class SkippedBucket(Around):
    """Nobody ever looks into bucket 0."""

    async def lease(self, topic: Topic, request: LeaseRequest, now: int) -> LeaseSet | None:
        buckets = [bucket for bucket in request.buckets if bucket != 0]
        return await self.inner.lease(topic, replace(request, buckets=buckets), now)


class EarlyByOne(Around):
    """What is due in the next millisecond is leased now."""

    async def lease(self, topic: Topic, request: LeaseRequest, now: int) -> LeaseSet | None:
        return await self.inner.lease(topic, replace(request, until=max(request.until, now) + 1), now)


class LostDelete(Around):
    """A delete answers as if it were done; the row stays."""

    async def delete(self, topic: Topic, lease_id: int, consumer: str, rows: Any, now: int) -> Outcomes:
        return await self.inner.extend(topic, lease_id, consumer, rows, now + 30_000, now)


class ForgottenSessions(Around):
    """After a restart a repeated batch of natural ids is taken for a new one."""

    async def open(self, now: int) -> None:
        self.memory["opened"] = self.memory.get("opened", -1) + 1
        await self.inner.open(now)

    async def create(self, topic: Topic, batch: CreateBatch, now: int) -> Outcomes:
        if batch.ids is not None:
            number = batch.session.number + 1_000_000 * self.memory["opened"]
            batch = replace(batch, session=replace(batch.session, number=number))
        return await self.inner.create(topic, batch, now)


class NoSessions(Around):
    """Batches of natural ids have no name: only the ids that stand are known."""

    async def create(self, topic: Topic, batch: CreateBatch, now: int) -> Outcomes:
        if batch.ids is not None:
            number = self.memory["made"] = self.memory.get("made", 0) + 1
            batch = replace(batch, session=replace(batch.session, number=number))
        return await self.inner.create(topic, batch, now)


class ForgottenLeases(Around):
    """A restart frees every message that was held."""

    async def open(self, now: int) -> None:
        await self.inner.open(now)
        for topic, lease_id, consumer in self.memory.setdefault("given", []):
            await self.inner.recall(topic, lease_id, consumer, None, now)

    async def lease(self, topic: Topic, request: LeaseRequest, now: int) -> LeaseSet | None:
        lease = await self.inner.lease(topic, request, now)
        if lease is not None:
            self.memory["given"].append((topic, lease.lease_id, lease.consumer))
        return lease


class UncountedAttempts(Around):
    """Every lease says that it is the first."""

    async def lease(self, topic: Topic, request: LeaseRequest, now: int) -> LeaseSet | None:
        lease = await self.inner.lease(topic, request, now)
        return replace(lease, attempts=None) if lease is not None else None


class RenumberedRows(Around):
    """A consumer that comes back gets its rows under new numbers."""

    async def leases_of(self, topic: Topic, consumer: str, now: int) -> list[LeaseSet]:
        return [replace(one, rows=None) for one in await self.inner.leases_of(topic, consumer, now)]


class ExtendsEverything(Around):
    """An extend of some rows moves the whole lease."""

    async def extend(self, topic: Topic, lease_id: int, consumer: str, rows: Any, expires: int, now: int) -> Outcomes:
        outcomes = await self.inner.extend(topic, lease_id, consumer, rows, expires, now)
        await self.inner.extend(topic, lease_id, consumer, None, expires, now)
        return outcomes


class RecallCounts(Around):
    """A recall is a release: the attempt that user code never saw is counted."""

    async def recall(self, topic: Topic, lease_id: int, consumer: str, rows: Any, now: int) -> Outcomes:
        return await self.inner.release(topic, lease_id, consumer, rows, now, now)


class AnyoneCancels(Around):
    """Whoever asks is taken for the owner."""

    async def cancel(
        self, topic: Topic, owner: str, ids: Sequence[str], now: int, versions: Sequence[int | None] | None = None
    ) -> Outcomes:
        outcomes = Outcomes(len(ids))
        for row, one in enumerate(ids):
            (found,) = await self.inner.get(topic, [one], now)
            code = (await self.inner.cancel(topic, found.producer_group if found else owner, [one], now))[0]
            if code is not Code.OK:
                outcomes.codes[row] = code
        return outcomes


class UnconditionalEdits(Around):
    """An edit does not look at the version it was asked for."""

    async def edit(self, topic: Topic, owner: str, edits: Edits, now: int) -> Outcomes:
        return await self.inner.edit(topic, owner, replace(edits, versions=None), now)


class LateBound(Around):
    """`next_ts` is one millisecond too late."""

    async def next_ts(self, topic: Topic, buckets: Sequence[int], now: int) -> int | None:
        bound = await self.inner.next_ts(topic, buckets, now)
        return bound + 1 if bound is not None else None


class StaleCount(Around):
    """Counts are those of the millisecond before."""

    async def count(self, topic: Topic, where: Filter, now: int) -> int:
        return await self.inner.count(topic, where, now - 1)


class InclusiveEnd(Around):
    """A histogram counts what lies at its end."""

    async def histogram(self, topic: Topic, where: Filter, step: int, now: int) -> list[tuple[int, int]]:
        end = min(where.end + 1, limits.TS_MS_MAX)
        return await self.inner.histogram(topic, replace(where, end=end), step, now)


class SkippingPages(Around):
    """Each page but the first leaves out a message."""

    async def browse(self, topic: Topic, where: Filter, cursor: bytes | None, limit: int, now: int) -> Page:
        page = await self.inner.browse(topic, where, cursor, limit, now)
        return replace(page, messages=page.messages[1:]) if cursor is not None and len(page.messages) > 1 else page


class CutBodies(Around):
    """Bodies beyond the size of those stored inline are cut."""

    async def create(self, topic: Topic, batch: CreateBatch, now: int) -> Outcomes:
        bodies = [body[: limits.INLINE_BODY_BYTES_MAX] for body in batch.bodies]
        return await self.inner.create(topic, replace(batch, bodies=bodies), now)


class ReusedNumbers(Around):
    """A dropped topic's number is given again."""

    async def next_topic_number(self) -> int:
        return max((topic.number for topic in await self.inner.topics()), default=0) + 1


class StepByStep(Around):
    """A transaction does its steps one after the other and stops at the first that is refused."""

    async def transact(self, transaction: Transaction, now: int) -> Verdict:
        for number, step in enumerate(transaction.steps):
            part = replace(transaction, sequence=transaction.sequence * 100 + number, steps=[step])
            verdict = await self.inner.transact(part, now)
            if not verdict.code.succeeded:
                return replace(verdict, step=number)
        return verdict


class NamelessTransactions(Around):
    """A repeated transaction is taken for a new one."""

    async def transact(self, transaction: Transaction, now: int) -> Verdict:
        number = self.memory["done"] = self.memory.get("done", 0) + 1
        return await self.inner.transact(replace(transaction, sequence=number), now)


class DroppedDead(Around):
    """What was leased too often is gone, and nowhere else."""

    async def lease(self, topic: Topic, request: LeaseRequest, now: int) -> LeaseSet | None:
        lease = await self.inner.lease(topic, request, now)
        if lease is not None and lease.dead and request.dead_letter is not None:
            page = await self.inner.browse(request.dead_letter, Filter(), None, 1_000, now)
            for message in page.messages:
                await self.inner.cancel(request.dead_letter, message.producer_group, [message.id], now)
        return lease


class IgnoredLimit(Around):
    """A message may be leased for ever."""

    async def lease(self, topic: Topic, request: LeaseRequest, now: int) -> LeaseSet | None:
        return await self.inner.lease(topic, replace(request, dead_letter=None), now)


class RejectDeletes(Around):
    """What is rejected is deleted."""

    async def reject(
        self, topic: Topic, lease_id: int, consumer: str, rows: Any, dead: Topic, reason: str, now: int
    ) -> Outcomes:
        return await self.inner.delete(topic, lease_id, consumer, rows, now)


class RedriveDrops(Around):
    """What meets its id where it came from is removed all the same."""

    async def redrive(self, topic: Topic, target: Topic, ids: Sequence[str], now: int) -> Outcomes:
        outcomes = await self.inner.redrive(topic, target, ids, now)
        for row, code in outcomes.codes.items():
            (found,) = await self.inner.get(topic, [ids[row]], now)
            if code is Code.ID_TAKEN and found is not None:
                await self.inner.cancel(topic, found.producer_group, [ids[row]], now)
        return outcomes


class NoBackoff(Around):
    """A lost message is due at the end of its lease, whatever the topic says."""

    async def lease(self, topic: Topic, request: LeaseRequest, now: int) -> LeaseSet | None:
        settings = replace(topic.settings, expiry_backoff="")
        plain = replace(topic, settings=settings)
        await self.inner.put_topic(plain)
        try:
            return await self.inner.lease(plain, request, now)
        finally:
            await self.inner.put_topic(topic)


class ForgottenPriority(Around):
    """What is released has the priority of everything else."""

    async def release(self, topic: Topic, lease_id: int, consumer: str, rows: Any, ts: Any, now: int) -> Outcomes:
        held = [one for one in await self.inner.leases_of(topic, consumer, now) if one.lease_id == lease_id]
        outcomes = await self.inner.release(topic, lease_id, consumer, rows, ts, now)
        for lease in held:
            for message in await self.inner.get(topic, lease.ids(), now):
                if message is not None and not message.lock_consumer:
                    edits = Edits([message.id], priorities=[0])
                    await self.inner.edit(topic, message.producer_group, edits, now)
        return outcomes


class IgnoredPriorities(Around):
    """A topic by priority takes every message for an ordinary one."""

    async def create(self, topic: Topic, batch: CreateBatch, now: int) -> Outcomes:
        return await self.inner.create(topic, replace(batch, priorities=None) if topic.by_priority else batch, now)


class TakenBodies(Around):
    """A reclaim takes every large body, whoever refers to it."""

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
    """Nothing ever removes a large body that nobody refers to."""

    @property
    def bodies(self) -> Any:
        return _Leaving(self.inner.bodies, self.memory)


class _Leaving(Around):
    async def reclaim(self, now: int) -> int:
        return 0


# Each bug, a check that finds it, and whether the model can see it.
BUGS: dict[type[Around], tuple[str, bool]] = {
    NoVersionCheck: ("settle.a_stale_holder_is_fenced_off", True),
    LeaseOverlap: ("leases.a_live_lease_excludes_everyone", True),
    SkippedBucket: ("leases.only_the_asked_buckets", True),
    EarlyByOne: ("leases.never_early", True),
    LostDelete: ("settle.delete_removes", True),
    ForgottenSessions: ("restart.a_repeat_is_known_after_a_restart", True),
    NoSessions: ("sessions.a_repeat_is_known_after_delivery", True),
    ForgottenLeases: ("restart.leases_survive", True),
    UncountedAttempts: ("leases.a_lost_message_is_leased_again", True),
    RenumberedRows: ("leases.leases_of_gives_live_leases_back", True),
    ExtendsEverything: ("settle.extend_moves_the_asked_rows_only", True),
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
    ReusedNumbers: ("topics.numbers_are_never_used_again", False),
}


def planted(bug: type[Around], factory: StorageFactory) -> StorageFactory:
    """The same storage, with the bug."""
    memory: dict[str, Any] = {}
    return lambda: bug(factory(), memory)  # type: ignore[return-value]
