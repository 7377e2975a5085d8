"""A group whose members are at several brokers: the store knows the members, and who has which bucket.

There is no coordinator. Each broker divides the buckets by what the store knows, asks its own members to release what
others are to have, and takes free buckets for its own members. Two brokers that know different things may decide
differently for a moment: the store gives a free bucket to one of them, and a commit of the former member is refused.
The members of a broker that has stopped are removed by the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from dejaq.broker.assignment.ring import seed_of
from dejaq.broker.assignment.shares import shares_of
from dejaq.broker.log.groups import GroupMember, ReaderGroup
from dejaq.errors import DejaqError
from dejaq.storage.log.base import GroupView, SharesGroups

log = logging.getLogger(__name__)


class SharedReaderGroup(ReaderGroup):
    """The members of one group at this broker. `tell` lets the other brokers look at the group."""

    def __init__(self, *parts: Any, shares: SharesGroups, broker: str, tell: Callable[[], None]) -> None:
        super().__init__(*parts)
        self._shares, self._broker, self._tell = shares, broker, tell
        self._joined: set[str] = set()
        self._to_free: list[tuple[str, int]] = []
        # Whether the other brokers must look at the group.
        self._changed = False

    def join(self, member: GroupMember) -> None:
        """Add a member; the store removes one of the same name, at whichever broker."""
        self._joined.add(member.name)
        self._changed = True
        super().join(member)

    def leave(self, member: GroupMember) -> None:
        """Remove a member; its buckets are free."""
        self._changed |= member in self.members
        super().leave(member)

    def _freed(self, member: GroupMember, bucket: int) -> None:
        self._to_free.append((member.name, bucket))

    async def _rebalance(self) -> None:
        async with self._changing:
            try:
                await self._divide()
            except DejaqError as error:
                # The next renewal tries it again.
                log.info("group %s of %s is divided later: %s", self.name, self.topic.name, error)

    async def _divide(self) -> None:
        view = await self._meet()
        self._leave_what_is_lost(view)
        targets = targets_in(view, self.topic.settings.buckets)
        for member in list(self.members):
            losing = [
                bucket
                for bucket in sorted(member.buckets)
                if targets.get(bucket) != member.name and bucket not in member.leaving
            ]
            if losing:
                self._revoke(member, losing)
            fresh = {bucket for bucket, holder in view.holders.items() if holder == member.name}
            fresh -= member.buckets | {bucket for name, bucket in self._to_free if name == member.name}
            # Its claim was ended by a reset.
            fresh |= {
                b for b in member.buckets - member.leaving.keys() if view.claims.get(b, 0) > member.claims.get(b, 0)
            }
            free = [bucket for bucket, name in targets.items() if name == member.name and bucket not in view.holders]
            if free:
                fresh |= await self._shares.hold(self.topic, self.name, self._broker, member.name, sorted(free))
            if fresh and member in self.members:
                await self._grant(member, sorted(fresh))

    async def _meet(self) -> GroupView:
        """Report the members here to the store; returns what it knows of the group."""
        freed, joined, changed = list(self._to_free), set(self._joined), self._changed
        names = [member.name for member in self.members]
        for name in {name for name, _ in freed}:
            await self._shares.let_go(self.topic, self.name, name, [bucket for one, bucket in freed if one == name])
        view = await self._shares.meet(
            self.topic, self.name, self._broker, names, [name for name in names if name in joined], self._clock.now_ms()
        )
        del self._to_free[: len(freed)]
        self._joined -= joined
        if changed or freed:
            self._changed = False
            self._tell()
        return view

    def _leave_what_is_lost(self, view: GroupView) -> None:
        """Take from the members here what the store has given to others, or has freed."""
        seats = {seat.member: seat.broker for seat in view.seats}
        for member in list(self.members):
            if member.name in self._joined:
                # It came after the store was asked.
                continue
            lost = [bucket for bucket in sorted(member.buckets) if view.holders.get(bucket) != member.name]
            for bucket in lost:
                alarm = member.leaving.pop(bucket, None)
                if alarm is not None:
                    alarm.cancel()
                member.buckets.discard(bucket)
            if lost:
                member.revoked(lost)
            if member.name not in seats:
                # This broker did not renew it in time.
                self._joined.add(member.name)
                self._rebalance_soon()
            elif seats[member.name] != self._broker:
                # Its client has connected to another broker.
                self.members.remove(member)


def targets_in(view: GroupView, buckets: int) -> dict[int, str]:
    """The member that is to have each bucket; the same at every broker that knows the same."""
    names = [seat.member for seat in view.seats]
    if not names:
        return {}
    shares = shares_of(dict.fromkeys(names, 1), {name: seed_of(name) for name in names}, buckets)
    found: dict[int, str] = {}
    for bucket, name in sorted(view.holders.items()):
        if shares.get(name, 0):
            shares[name] -= 1
            found[bucket] = name
    free = (bucket for bucket in range(buckets) if bucket not in found)
    for name in names:
        for _ in range(shares[name]):
            found[next(free)] = name
    return found
