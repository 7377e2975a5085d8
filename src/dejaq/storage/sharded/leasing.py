"""Leases over several shards: one id, and rows that are numbered across all of them."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from dejaq.domain.batch import LeaseRequest, LeaseSet, Outcomes, RowRange, whole
from dejaq.domain.context import CallContext
from dejaq.domain.topic import Topic
from dejaq.errors import Code, DejaqError, error_of
from dejaq.storage.postgres.connection.failures import Moving
from dejaq.storage.postgres.operations.leasing import Joined, allowed
from dejaq.storage.postgres.sharding.shard import STRIDE, PostgresShard
from dejaq.storage.sharded import joining
from dejaq.storage.sharded.joining import Asked
from dejaq.storage.sharded.routing import Router
from dejaq.storage.sharded.shards import Ask, Shards, raise_if_all_failed
from dejaq.storage.sharded.turns import Turns

log = logging.getLogger(__name__)
_LEASES_KNOWN_MAX = 10_000


class Leases:
    """Creates leases, and finds the rows of existing leases."""

    def __init__(self, shards: Shards, router: Router) -> None:
        self._shards = shards
        self._router = router
        self._turns = Turns()
        # The shards that have the rows of a lease over several shards.
        self._given: OrderedDict[int, dict[int, RowRange]] = OrderedDict()

    def forget(self) -> None:
        """Forget everything that is only in memory; the shards still know their rows."""
        self._given.clear()

    async def lease(self, topic: Topic, request: LeaseRequest, now: int, context: CallContext) -> LeaseSet | None:
        """Lease the messages that are due on every shard, the earliest first, under one lease id."""
        try:
            return await self._lease(topic, request, now, context)
        except Moving:
            # Nothing was leased; messages that are being moved are leased on their new shard.
            return None

    async def _lease(self, topic: Topic, request: LeaseRequest, now: int, context: CallContext) -> LeaseSet | None:
        if not allowed(request, now):
            return None
        groups = self._router.groups(topic, request.buckets)
        if not groups:
            return None
        if len(groups) == 1:
            ((place, buckets),) = groups.items()
            part = replace(request, buckets=buckets)
            return await self._shards.ask(place, lambda shard: shard.lease(topic, part, now, context))
        async with self._turns.of([(topic.number, bucket) for bucket in request.buckets]):
            return await self._lease_together(topic, request, now, context, groups)

    async def _lease_together(
        self,
        topic: Topic,
        request: LeaseRequest,
        now: int,
        context: CallContext,
        groups: Mapping[int, Sequence[int]],
    ) -> LeaseSet | None:
        def peek(own: LeaseRequest) -> Ask[tuple[int, list[tuple[int, int, int]]]]:
            return lambda shard: shard.peek(topic, own, now)

        requests = {place: replace(request, buckets=buckets) for place, buckets in groups.items()}
        peeks = await self._shards.look({place: peek(own) for place, own in requests.items()})
        shares = joining.quotas(
            {place: rows for place, (_, rows) in peeks.items()},
            rows_max=request.rows_max,
            bytes_max=request.bytes_max,
            by_priority=topic.by_priority,
        )
        total, first = sum(shares.values()), 0
        sets: dict[int, LeaseSet] = {}
        lease_id: int | None = None
        # The shard with the highest version creates the id, so that it is above the versions of all rows.
        for place, share in sorted(shares.items(), key=lambda one: -peeks[one[0]][0]):
            own = replace(requests[place], rows_max=share)
            joined = Joined(lease_id, first, total) if len(shares) > 1 else None
            first += share
            try:
                part = await self._shards.ask(place, _leased(topic, own, now, context, joined))
            except DejaqError as error:
                if not sets:
                    raise
                log.info("a part of a lease was not given: %s", error)
                continue
            if part is not None:
                sets[place] = part
                lease_id = lease_id or part.lease_id or None
        if not sets:
            return None
        granted = joining.merged(list(sets.values()), by_priority=topic.by_priority)
        if granted.rows is not None:
            self._give(granted.lease_id, {place: _rows(part) for place, part in sets.items() if len(part)})
        return granted

    def _give(self, lease_id: int, rows: dict[int, RowRange]) -> None:
        self._given[lease_id] = rows
        if len(self._given) > _LEASES_KNOWN_MAX:
            self._given.popitem(last=False)

    def check_times(self, lease_id: int, rows: Sequence[RowRange] | None, ts: int | Sequence[int]) -> None:
        """Raise INVALID_ARGUMENT unless there is one time per row."""
        if lease_id in self._given and not isinstance(ts, int):
            known = list(self._given[lease_id].values()) if rows is None else rows
            if len(ts) != sum(end - start for start, end in known):
                raise error_of(Code.INVALID_ARGUMENT, f"{len(ts)} times for the rows to release")

    async def settle(
        self,
        topic: Topic,
        lease_id: int,
        rows: Sequence[RowRange] | None,
        call: Callable[[PostgresShard, Asked], Awaitable[Outcomes]],
    ) -> Outcomes:
        """Settle rows on their shards: first on the shard that created the lease, then lost rows on the other possible
        shards.
        """

        def ask(asked: Asked) -> Ask[Outcomes]:
            return lambda shard: call(shard, asked)

        version = self._shards.map.version
        if (given := self._given.get(lease_id)) is not None and rows is None:
            rows = list(given.values())
        parts = self._parts_of(topic, lease_id, rows)
        answers = await self._shards.ask_steadily({place: ask(part) for place, part in parts.items()})
        outcomes = _joined(parts, answers, rows)
        others = [place for place in self._router.places(topic) if place not in answers]
        if outcomes.codes and others:
            parts |= dict.fromkeys(others, Asked(rows))
            answers |= await self._shards.ask_steadily(dict.fromkeys(others, ask(Asked(rows))))
            outcomes = _joined(parts, answers, rows)
        if outcomes.codes and self._shards.map.version != version:
            # Rows may have moved to a shard that was asked before they arrived.
            said = [(parts[place], answer) for place, answer in answers.items() if isinstance(answer, Outcomes)]
            everywhere = dict.fromkeys(self._router.places(topic), Asked(rows))
            again = await self._shards.ask_steadily({place: ask(part) for place, part in everywhere.items()})
            outcomes = _joined(everywhere, again, rows, said)
        return outcomes

    def _parts_of(self, topic: Topic, lease_id: int, rows: Sequence[RowRange] | None) -> dict[int, Asked]:
        """Which shards to ask for which rows of a lease; raises INVALID_ARGUMENT for rows that it never had."""
        given = self._given.get(lease_id)
        if given is None or rows is None:
            return {self._giver(topic, lease_id): Asked(rows)}
        whole(rows, max(end for _, end in given.values()))
        parts = {place: Asked.part(rows, own) for place, own in given.items()}
        return {place: part for place, part in parts.items() if part is not None} or {min(given): Asked(rows)}

    def _giver(self, topic: Topic, lease_id: int) -> int:
        """The shard that created the lease's number."""
        places = self._router.places(topic)
        return next((p for p in places if self._shards.map.shards[p].ordinal == lease_id % STRIDE), places[0])


def _leased(
    topic: Topic, request: LeaseRequest, now: int, context: CallContext, joined: Joined | None
) -> Ask[LeaseSet | None]:
    """A call for a shard's part of a lease."""

    async def part(shard: PostgresShard) -> LeaseSet | None:
        if joined is not None and joined.lease_id is not None:
            await shard.keep_up(joined.lease_id)
        return await shard.lease(topic, request, now, context, joined)

    return part


def _joined(
    parts: Mapping[int, Asked],
    answers: Mapping[int, Outcomes | DejaqError],
    rows: Sequence[RowRange] | None,
    before: Sequence[tuple[Asked, Outcomes]] = (),
) -> Outcomes:
    """The joined answers of the shards for rows of one lease; rows of a shard that failed have its error's code."""
    raise_if_all_failed(answers)
    errors = [answer for answer in answers.values() if isinstance(answer, DejaqError)]
    said = [(parts[place], answer) for place, answer in answers.items() if not isinstance(answer, DejaqError)]
    return joining.settled([*before, *said], rows, errors[0].code if errors else Code.LEASE_LOST)


def _rows(part: LeaseSet) -> RowRange:
    """The numbers of the rows of a shard's part of a lease."""
    assert part.rows is not None
    return part.rows[0], part.rows[-1] + 1
