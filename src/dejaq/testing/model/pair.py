"""A storage and the memory model together: each step runs on both and the answers are compared."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from dejaq import limits
from dejaq.domain.batch import CreateBatch, LeaseRequest, LeaseSet, RowRange, ranges_of_rows
from dejaq.domain.bodies.large import any_reference
from dejaq.domain.changes import Cancel, Create, Delete, Edit, Edits, Extend, Recall, Redrive, Reject, Release
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.dead_letter import Cause
from dejaq.domain.ids import ProducerSession
from dejaq.errors import Code, Conflict
from dejaq.storage.base import Filter, Storage, apply_one
from dejaq.storage.transactions import Step, Transaction
from dejaq.testing.conformance.scene import (
    START_MS,
    check_shape,
    ids_of,
    listed,
    numbers_of,
    priorities_of,
    settled,
)
from dejaq.testing.model.pair_comparison import PairComparison
from dejaq.testing.model.pair_state import BUCKETS, SESSIONS, LeasePair, rows_of
from dejaq.testing.model.steps import PlannedRow, PlannedStep, SettleKind, StepKind


class Pair(PairComparison):
    """Runs steps on both. When several messages are equally next, the storage chooses and the model does the same."""

    # Producer

    async def create(
        self,
        *,
        ids: Sequence[str] | None,
        rows: Sequence[PlannedRow],
        owner: str,
        session: int,
        back: int,
        refused: AbstractSet[int],
        bucket: int = 0,
        relative: AbstractSet[int] = frozenset(),
    ) -> None:
        """Create `rows`; their counters begin `back` before the session's next counter, or leave a gap."""
        number = session % SESSIONS
        sequence = max(0, self._sequences[number] - back)
        self._sequences[number] = max(self._sequences[number], sequence + len(rows))
        batch = CreateBatch(
            owner=owner,
            session=ProducerSession(START_MS, number),
            sequence=sequence,
            ts=[self.now + delay for delay, _, _, _ in rows],
            bodies=[self._body(name) for _, _, name, _ in rows],
            ids=ids,
            bucket=bucket,
            priorities=[priority for _, priority, _, _ in rows],
            headers=[headers for _, _, _, headers in rows],
            refused=dict.fromkeys(refused, Code.TOO_FAR),
            relative_rows=ranges_of_rows(relative),
        )
        batch.large = any_reference(batch.bodies)
        await self._send(batch)
        self.batches.append(batch)
        self.ids += [one for one in ids_of(batch) if one not in self.ids]

    async def repeat(self, pick: int) -> None:
        """Send an earlier batch again; rows that were refused at first are admitted now."""
        batch = self.batches[pick % len(self.batches)]
        await self._send(replace(batch, refused={} if pick % 2 else batch.refused))

    async def _send(self, batch: CreateBatch) -> None:
        if batch.large:
            await self._name(batch.bodies)
        expected = listed(
            await apply_one(self._model, Create(self._topic, self._in_model(batch)), self.now, DIRECT_CALL), len(batch)
        )
        codes = listed(await apply_one(self._real, Create(self._topic, batch), self.now, DIRECT_CALL), len(batch))
        assert codes == expected, f"create answered {codes}, the model {expected}"

    async def edit(
        self,
        picks: Sequence[int],
        *,
        owner: str,
        delays: Sequence[int | None] | None,
        bodies: Sequence[str | None] | None,
        priorities: Sequence[int | None] | None,
        headers: Sequence[bytes | None] | None,
        versions: str | None,
    ) -> None:
        """Edit; `versions` makes the edit conditional on the current or the first known version."""
        ids = self._picked(picks)
        edits = Edits(
            ids,
            ts=[None if one is None else self.now + one for one in delays] if delays is not None else None,
            bodies=[None if one is None else self._body(one) for one in bodies] if bodies is not None else None,
            priorities=priorities,
            headers=headers,
        )
        named = [body for body in edits.bodies or () if body is not None]
        if any_reference(named):
            edits = replace(edits, large=True)
            await self._name(named)
        twin = edits
        if edits.bodies is not None:
            twin = replace(edits, bodies=[body and self.uploads.in_model(body) for body in edits.bodies])
        known = [list(self._versions.get(one, {0: 0}).items()) for one in ids]
        index = -1 if versions == "present" else 0
        conditions: list[tuple[list[int] | None, Storage, Edits]] = [
            ([pairs[index][0] for pairs in known] if versions else None, self._model, twin),
            ([pairs[index][1] for pairs in known] if versions else None, self._real, edits),
        ]
        expected, codes = [
            listed(
                await apply_one(
                    storage, Edit(self._topic, owner, replace(own, versions=values)), self.now, DIRECT_CALL
                ),
                len(ids),
            )
            for values, storage, own in conditions
        ]
        assert codes == expected, f"edit answered {codes}, the model {expected}"

    async def cancel(self, picks: Sequence[int], *, owner: str) -> None:
        """Cancel."""
        await self._cancel(self._picked(picks), owner)

    async def cancel_batch(self, pick: int) -> None:
        """Cancel the remaining messages of an earlier batch."""
        batch = self.batches[pick % len(self.batches)]
        await self._cancel(ids_of(batch), batch.owner)

    async def _cancel(self, ids: Sequence[str], owner: str) -> None:
        expected = listed(
            await apply_one(self._model, Cancel(self._topic, owner, ids), self.now, DIRECT_CALL), len(ids)
        )
        codes = listed(await apply_one(self._real, Cancel(self._topic, owner, ids), self.now, DIRECT_CALL), len(ids))
        assert codes == expected, f"cancel answered {codes}, the model {expected}"

    def _picked(self, picks: Sequence[int]) -> list[str]:
        return [self.ids[pick % len(self.ids)] for pick in picks]

    # Large bodies

    async def upload(self, bucket: int, content: bytes) -> None:
        """Upload a body, for a message of some bucket."""
        await self.uploads.add(self._real, self._model, self._topic, bucket, content, self.now)

    async def reclaim(self) -> None:
        """Remove the bodies that no message needs."""
        await self.uploads.reclaim(self._real, self._model, self._topic, self.now)

    async def _name(self, bodies: Sequence[bytes]) -> None:
        """Before messages get these bodies, record which of the bodies exist."""
        await self.uploads.follow(self._real, self._model, self._topic, self.now)
        self.uploads.named(bodies, self.now)

    def _in_model(self, batch: CreateBatch) -> CreateBatch:
        return replace(batch, bodies=list(map(self.uploads.in_model, batch.bodies))) if batch.large else batch

    def _body(self, name: str) -> bytes:
        """The body of a name; histories are printed, so the large body is shown by its name."""
        uploaded = self.uploads.body(int(name[-1])) if name.startswith("upload") else None
        return uploaded or name.encode() * (limits.INLINE_BODY_BYTES_MAX if name == "large" else 1)

    # Consumer

    async def lease(self, *, consumer: str, ahead: int, lease_ms: int, buckets: Sequence[int], rows_max: int) -> None:
        """Lease from the storage; check with the model that these messages were next, and lease the
        same in the model.
        """
        request = LeaseRequest(
            buckets=buckets,
            consumer=consumer,
            until=self.now + ahead,
            expires=self.now + ahead + lease_ms,
            rows_max=rows_max,
            dead_letter=self._dead,
        )
        free = await self._model.leasable(self._topic, request, self.now)
        real = await self._real.lease(self._topic, request, self.now, DIRECT_CALL)
        if real is None:
            assert not free, f"nothing was leased although {[m.id for m in free]} are due"
            return
        still = await self._real.get(self._topic, [m.id for m in free], self.now)
        died = [message for message, left in zip(free, still, strict=True) if left is None]
        assert len(died) == real.dead_lettered, f"{real.dead_lettered} were moved, {[m.id for m in died]} are gone"
        if len(real):
            check_shape(real, request, by_priority=self._topic.by_priority)
        keys = [*zip(real.ts, priorities_of(real), strict=True), *((m.ts, m.priority) for m in died)]
        keys.sort(key=(lambda key: key[::-1]) if self._topic.by_priority else None)
        assert keys == [(m.ts, m.priority) for m in free[: len(keys)]], "the leased messages were not next"
        numbers = numbers_of(real)
        by_number = [real.ids()[numbers.index(number)] for number in range(len(real))]
        model = await self._model.lease_these(
            self._topic, by_number, request, self.now, dead=[message.id for message in died]
        )
        assert model is not None, f"{by_number} were leased, although the model has nothing to lease"
        assert rows_of(real) == rows_of(model)
        if len(real):
            self.leases.append(LeasePair(real, model))

    async def redrive(self, picks: Sequence[int]) -> None:
        """Move dead letters back."""
        there = [message.id for message in await self._browse(self._model, Filter(), limit=1_000, topic=self._dead)]
        ids = [[*there, "nobody"][pick % (len(there) + 1)] for pick in picks]
        expected = listed(
            await apply_one(self._model, Redrive(self._dead, self._topic, ids), self.now, DIRECT_CALL), len(ids)
        )
        codes = listed(
            await apply_one(self._real, Redrive(self._dead, self._topic, ids), self.now, DIRECT_CALL), len(ids)
        )
        assert codes == expected, f"redrive answered {codes}, the model {expected}"

    async def settle(
        self,
        kind: SettleKind,
        lease: LeasePair,
        *,
        rows: Sequence[RowRange] | None,
        stranger: bool,
        delay: int,
        lease_ms: int,
    ) -> None:
        """Settle rows by number, sometimes as a consumer that does not hold them."""
        codes, expected = [
            await self._settle(storage, kind, one, rows, stranger=stranger, delay=delay, lease_ms=lease_ms)
            for storage, one in ((self._real, lease.real), (self._model, lease.model))
        ]
        assert codes == expected, f"{kind.name} answered {codes}, the model {expected}"

    async def _settle(
        self,
        storage: Storage,
        kind: SettleKind,
        lease: LeaseSet,
        rows: Sequence[RowRange] | None,
        *,
        stranger: bool,
        delay: int,
        lease_ms: int,
    ) -> list[Code]:
        consumer = "stranger" if stranger else lease.consumer
        topic, lease_id, now = self._topic, lease.lease_id, self.now
        count = len(lease) if rows is None else sum(end - start for start, end in rows)
        if kind is SettleKind.DELETE:
            answer = apply_one(storage, Delete(topic, lease_id, consumer, rows), now, DIRECT_CALL)
        elif kind is SettleKind.EXTEND:
            answer = apply_one(storage, Extend(topic, lease_id, consumer, rows, now + lease_ms), now, DIRECT_CALL)
        elif kind is SettleKind.RELEASE:
            answer = apply_one(storage, Release(topic, lease_id, consumer, rows, now + delay), now, DIRECT_CALL)
        elif kind is SettleKind.RELEASE_EACH:
            # Rows are named one by one, because a storage that has forgotten the lease does not know its number of
            # rows.
            rows = rows or [(0, count)]
            times = [now + delay + place for place in range(count)]
            answer = apply_one(storage, Release(topic, lease_id, consumer, rows, times), now, DIRECT_CALL)
        elif kind is SettleKind.REJECT:
            answer = apply_one(
                storage, Reject(topic, lease_id, consumer, rows, self._dead, Cause("no use")), now, DIRECT_CALL
            )
        else:
            answer = apply_one(storage, Recall(topic, lease_id, consumer, rows), now, DIRECT_CALL)
        return await settled(answer, replace(lease, rows=None), rows)

    # Both sides together

    async def transact(self, plans: Sequence[PlannedStep], *, back: int) -> None:
        """Run steps together; with `back` under a name that may have been used before."""
        self._transactions = max(0, self._transactions + 1 - back)
        steps = [self._steps_of(plan) for plan in plans]
        await self._name([body for step, _ in steps if isinstance(step, Create) for body in step.batch.bodies])
        name = ProducerSession(START_MS, SESSIONS)
        real, model = (Transaction(name, self._transactions, [pair[side] for pair in steps]) for side in range(2))
        try:
            verdicts = [await self._real.transact(real, self.now, DIRECT_CALL)]
        except Conflict as refusal:
            # A store with several parts runs transactions within one part, and refuses others.
            if refusal.code is not Code.DIFFERENT_STORES or self._real.capabilities.parts == 1:
                raise
            return
        verdicts.append(await self._model.transact(model, self.now, DIRECT_CALL))
        assert verdicts[0] == verdicts[1], f"transact answered {verdicts[0]}, the model {verdicts[1]}"

    def _steps_of(self, plan: PlannedStep) -> tuple[Step, Step]:
        """One step in the form for the storage and for the model; there is a message and a lease to name."""
        lease = self.leases[plan.pick % len(self.leases)] if plan.recent else self.leases[-1]
        row = plan.pick % lease.count
        rows, ts = [(row, row + 1)], self.now + plan.delay
        message_id = self.ids[plan.pick % len(self.ids)]
        real, model = lease.real, lease.model
        if plan.kind is StepKind.DELETE:
            return (
                Delete(self._topic, real.lease_id, real.consumer, rows),
                Delete(self._topic, model.lease_id, model.consumer, rows),
            )
        if plan.kind is StepKind.RELEASE:
            return (
                Release(self._topic, real.lease_id, real.consumer, rows, ts),
                Release(self._topic, model.lease_id, model.consumer, rows, ts),
            )
        step: Step
        if plan.kind is StepKind.MOVE:
            step = Edit(self._topic, plan.owner, Edits([message_id], ts=[ts]))
        elif plan.kind is StepKind.CANCEL:
            step = Cancel(self._topic, plan.owner, [message_id])
        else:
            batch = self._batch_of(plan, ts)
            return Create(self._topic, batch), Create(self._topic, self._in_model(batch))
        return step, step

    def _batch_of(self, plan: PlannedStep, ts: int) -> CreateBatch:
        session = ProducerSession(START_MS, SESSIONS)
        bucket = plan.pick % BUCKETS
        batch = CreateBatch(
            owner=plan.owner,
            session=session,
            sequence=self._made,
            ts=[ts],
            bodies=[self._body(plan.body)],
            ids=[plan.id] if plan.id else None,
            bucket=bucket,
        )
        batch.large = any_reference(batch.bodies)
        self._made += 1
        self.ids += [one for one in ids_of(batch) if one not in self.ids]
        return batch
