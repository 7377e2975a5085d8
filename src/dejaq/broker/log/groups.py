"""Groups: the buckets of a log are divided among the members of a group.

Each member has the same number of buckets, or one more. When a member comes or goes, only the buckets move that must.
A member that loses buckets has a few seconds to commit what it has handled; then the next member claims them, and a
commit of the former one is refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from dejaq.broker.assignment.ring import seed_of
from dejaq.broker.assignment.shares import shares_of
from dejaq.broker.background import Background
from dejaq.domain.context import CallContext
from dejaq.domain.topic import Topic
from dejaq.errors import Code, DejaqError
from dejaq.storage.log.base import LogStorage, OffsetCommit
from dejaq.timekeeper.clock import Clock

log = logging.getLogger(__name__)

REVOKE_SECONDS = 5.0
_REBALANCE = CallContext.internal("rebalance a group")


@dataclass(eq=False, slots=True)
class GroupMember:
    """One reader of a group. `granted` gets buckets with their offsets and the claim; `revoked` loses buckets."""

    name: str
    defaults: Mapping[int, int]
    granted: Callable[[Mapping[int, int], int], None]
    revoked: Callable[[list[int]], None]
    failed: Callable[[DejaqError], None]
    buckets: set[int] = field(default_factory=set)
    claims: dict[int, int] = field(default_factory=dict)
    # Buckets that it is asked to release, each with its alarm.
    leaving: dict[int, asyncio.TimerHandle] = field(default_factory=dict)


class ReaderGroup:
    """The members of one group of one topic, in the order in which they came."""

    def __init__(self, topic: Topic, name: str, storage: LogStorage, clock: Clock, background: Background) -> None:
        self.topic, self.name = topic, name
        self._storage, self._clock, self._background = storage, clock, background
        self.members: list[GroupMember] = []
        self._changing = asyncio.Lock()
        self._running = 0

    def join(self, member: GroupMember) -> None:
        """Add a member; a member of the same name that is still there is one that has lost its connection."""
        for old in [one for one in self.members if one.name == member.name]:
            self.leave(old)
        self.members.append(member)
        self._rebalance_soon()

    def leave(self, member: GroupMember) -> None:
        """Remove a member; its buckets are free."""
        if member in self.members:
            self.members.remove(member)
            for alarm in member.leaving.values():
                alarm.cancel()
            member.leaving.clear()
            member.buckets.clear()
            self._rebalance_soon()

    def release(self, member: GroupMember, buckets: list[int], claims: Sequence[int] = ()) -> None:
        """A member has finished with buckets that it was asked to release, and had under these claims."""
        for bucket, claim in zip_longest(buckets, claims):
            if claim is not None and member.claims.get(bucket) != claim:
                continue
            alarm = member.leaving.pop(bucket, None)
            if alarm is not None:
                alarm.cancel()
                member.buckets.discard(bucket)
                self._freed(member, bucket)
        self._rebalance_soon()

    def _freed(self, member: GroupMember, bucket: int) -> None:
        """A member has released a bucket."""

    @property
    def busy(self) -> bool:
        """Whether its buckets are being divided."""
        return self._running > 0

    def look(self) -> None:
        """Divide the buckets again, since something may have changed elsewhere."""
        if not self.busy:
            self._rebalance_soon()

    def _rebalance_soon(self) -> None:
        self._running += 1
        self._background.spawn(self._run(), name=f"rebalance of group {self.name}")

    async def _run(self) -> None:
        try:
            await self._rebalance()
        finally:
            self._running -= 1

    def targets(self) -> dict[int, GroupMember]:
        """The member that is to have each bucket."""
        if not self.members:
            return {}
        names = {str(place): one for place, one in enumerate(self.members)}
        seeds = {place: seed_of(one.name) for place, one in names.items()}
        shares = shares_of(dict.fromkeys(names, 1), seeds, self.topic.settings.buckets)
        found: dict[int, GroupMember] = {}
        for place, member in names.items():
            # Those that it keeps; buckets that it is about to lose are the first to go.
            kept = sorted(member.buckets, key=lambda bucket: (bucket in member.leaving, bucket))[: shares[place]]
            found.update(dict.fromkeys(kept, member))
            shares[place] -= len(kept)
        free = (bucket for bucket in range(self.topic.settings.buckets) if bucket not in found)
        for place, member in names.items():
            for _ in range(shares[place]):
                found[next(free)] = member
        return found

    async def _rebalance(self) -> None:
        async with self._changing:
            targets = self.targets()
            owned = {bucket for one in self.members for bucket in one.buckets}
            for member in list(self.members):
                lost = [b for b in sorted(member.buckets) if targets.get(b) is not member and b not in member.leaving]
                if lost:
                    self._revoke(member, lost)
                fresh = [b for b, target in sorted(targets.items()) if target is member and b not in owned]
                if fresh and member in self.members:
                    await self._grant(member, fresh)

    def _revoke(self, member: GroupMember, buckets: list[int]) -> None:
        loop = asyncio.get_running_loop()
        for bucket in buckets:
            member.leaving[bucket] = loop.call_later(REVOKE_SECONDS, self.release, member, [bucket])
        member.revoked(buckets)

    async def _grant(self, member: GroupMember, buckets: list[int]) -> None:
        member.buckets.update(buckets)
        try:
            claim, committed = await self._storage.claim(
                self.topic, self.name, buckets, self._clock.now_ms(), _REBALANCE
            )
            begun = await self._begin(member, [bucket for bucket in buckets if bucket not in committed], claim)
        except DejaqError as error:
            member.buckets.difference_update(buckets)
            member.failed(error)
            return
        if member in self.members:
            member.claims.update(dict.fromkeys(buckets, claim))
            member.granted({**begun, **committed}, claim)

    async def _begin(self, member: GroupMember, buckets: list[int], claim: int) -> dict[int, int]:
        """Decide once where the group begins buckets of which it has committed nothing, and commit that.

        Otherwise the next member would begin at a place of its own, behind what this one did not commit.
        """
        if not buckets:
            return {}
        now = self._clock.now_ms()
        held = await self._storage.offsets(self.topic, now)
        begun = {b: min(max(member.defaults.get(b, 0), held[b].start), held[b].next) for b in buckets}
        commits = [OffsetCommit(bucket, offset, claim) for bucket, offset in begun.items()]
        codes = await self._storage.commit(self.topic, self.name, commits, now, _REBALANCE)
        if any(code is not Code.OK for code in codes):
            # The offsets of the group were set meanwhile; the members get them after this.
            log.info("group %s of %s was set while it began", self.name, self.topic.name)
        return begun

    async def restart(self) -> None:
        """Give every member its buckets again, because the offsets were set."""
        async with self._changing:
            for member in list(self.members):
                held = sorted(member.buckets - member.leaving.keys())
                if held:
                    await self._grant(member, held)


class ReaderGroups:
    """The groups that have members at this broker now. `make` makes one."""

    def __init__(self, make: Callable[[Topic, str], ReaderGroup]) -> None:
        self._make = make
        self._groups: dict[tuple[int, str], ReaderGroup] = {}

    def of(self, topic: Topic, name: str) -> ReaderGroup:
        """The group of this name; it is forgotten when it has no members."""
        self._groups = {key: one for key, one in self._groups.items() if one.members or one.busy}
        found = self._groups.get((topic.number, name))
        if found is None:
            found = self._groups[topic.number, name] = self._make(topic, name)
        return found

    def look(self, number: int | None = None) -> None:
        """Divide the buckets again of the groups of a topic, or of all."""
        for (topic, _), group in list(self._groups.items()):
            if group.members and number in (None, topic):
                group.look()

    def members(self, topic: Topic, name: str) -> list[str]:
        """The names of the members of a group at this broker."""
        group = self._groups.get((topic.number, name))
        return [] if group is None else [member.name for member in group.members]
