"""R19: bugs to plant into a broker's process, each of which the fault tests must find.

BrokerProcess(data, prelude=prelude("lost_delete"))

They are planted from outside, before the broker starts; the product has no hook for them.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dejaq.broker.delivery import consumer
from dejaq.domain.batch import LeaseRequest, LeaseSet, Outcomes
from dejaq.domain.changes import Change, Delete
from dejaq.domain.topic import Topic
from dejaq.errors import Refused
from dejaq.storage.rocksdb.engine.committer import Committer
from dejaq.storage.rocksdb.store import RocksStorage

ROOT = Path(__file__).resolve().parents[2]
EARLY_MS = 1
OVERLAP_MS = 150


def prelude(bug: str) -> str:
    """Python code that plants a bug in the process that runs it."""
    return f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.chaos import planted; planted.apply({bug!r})"


def apply(bug: str) -> None:
    """Plant one bug in this process."""
    BUGS[bug]()


def _ack_before_fsync() -> None:
    """A write is acknowledged before its sync."""
    write = Committer.write

    def hasty(self: Committer, *arguments: Any, **named: Any) -> asyncio.Future[None]:
        write(self, *arguments, **named)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    _replace(Committer, "write", hasty)
    _replace(Committer, "pending", lambda self: None)


def _early_by_one() -> None:
    """A message is sent to its consumer with an earlier time than its own."""
    write_push = consumer.write_push

    def early(push: Any, lease: LeaseSet) -> None:
        write_push(push, replace(lease, ts=[ts - EARLY_MS for ts in lease.ts]))

    _replace(consumer, "write_push", early)


def _lease_overlap() -> None:
    """The store ends a lease before the end time that the consumer received."""
    lease = RocksStorage.lease

    async def short(self: RocksStorage, topic: Topic, request: LeaseRequest, *rest: Any) -> LeaseSet | None:
        granted = await lease(self, topic, replace(request, expires=request.until + OVERLAP_MS), *rest)
        return granted and replace(granted, expires=request.expires)

    _replace(RocksStorage, "lease", short)


def _replace_apply(value: Any) -> None:
    """Have every change go through this `apply`, also those that the store would begin at once."""
    _replace(RocksStorage, "apply", value)
    _replace(RocksStorage, "begin", lambda self, changes, now, context: None)


def _lost_delete() -> None:
    """Every third delete is acknowledged and not done."""
    apply = RocksStorage.apply
    numbers = itertools.count(1)

    async def forgetful(
        self: RocksStorage, changes: Sequence[Change], now: int, *rest: Any
    ) -> list[Outcomes | Refused]:
        skipped = [isinstance(change, Delete) and next(numbers) % 3 == 0 for change in changes]
        done = [change for change, skip in zip(changes, skipped, strict=True) if not skip]
        answers = iter(await apply(self, done, now, *rest))
        return [Outcomes(0) if skip else next(answers) for skip in skipped]

    _replace_apply(forgetful)


def _skipped_bucket() -> None:
    """The first bucket of a consumer is never leased from."""
    lease = RocksStorage.lease

    async def blind(self: RocksStorage, topic: Topic, request: LeaseRequest, *rest: Any) -> LeaseSet | None:
        buckets = [bucket for bucket in request.buckets if bucket != 0]
        return await lease(self, topic, replace(request, buckets=buckets), *rest) if buckets else None

    _replace(RocksStorage, "lease", blind)


def _no_version_check() -> None:
    """A delete under an expired lease is accepted, even when another consumer holds the message now."""
    lease, apply = RocksStorage.lease, RocksStorage.apply
    rows: dict[tuple[int, int], str] = {}

    async def noting(self: RocksStorage, *arguments: Any) -> LeaseSet | None:
        granted = await lease(self, *arguments)
        if granted is not None:
            numbers = granted.rows or range(len(granted))
            rows.update({(granted.lease_id, row): name for row, name in zip(numbers, granted.ids(), strict=True)})
        return granted

    async def trusting(self: RocksStorage, changes: Sequence[Change], now: int, *rest: Any) -> list[Outcomes | Refused]:
        answers = await apply(self, changes, now, *rest)
        for change, outcomes in zip(changes, answers, strict=True):
            if not isinstance(change, Delete) or not isinstance(outcomes, Outcomes):
                continue
            for row in list(outcomes.codes):
                (holder,) = await self.holders(change.topic, [rows[change.lease_id, row]], now)
                if holder is not None:
                    span = [(holder.row, holder.row + 1)]
                    await apply(self, [Delete(change.topic, holder.lease_id, holder.consumer, span)], now, *rest)
                    del outcomes.codes[row]
        return answers

    _replace(RocksStorage, "lease", noting)
    _replace_apply(trusting)


BUGS: dict[str, Callable[[], None]] = {
    "ack_before_fsync": _ack_before_fsync,
    "early_by_one": _early_by_one,
    "lease_overlap": _lease_overlap,
    "lost_delete": _lost_delete,
    "skipped_bucket": _skipped_bucket,
    "no_version_check": _no_version_check,
}


def _replace(owner: object, name: str, value: object) -> None:
    """Replace an attribute that must exist, because a bug that replaces nothing would prove nothing."""
    getattr(owner, name)
    setattr(owner, name, value)
