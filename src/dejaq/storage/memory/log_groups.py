"""The members of groups at all brokers that share a memory store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dejaq.storage.log.base import MEMBER_MS, GroupSeat


@dataclass(slots=True)
class GroupMembers:
    """The members of one group by name, in the order in which they came: the broker, and when it was renewed."""

    seats: dict[str, tuple[str, int]] = field(default_factory=dict)
    holders: dict[int, str] = field(default_factory=dict)

    def meet(self, broker: str, members: Sequence[str], joined: Sequence[str], now: int) -> tuple[GroupSeat, ...]:
        """Renew the members of a broker."""
        gone = [
            name
            for name, (place, seen) in self.seats.items()
            if seen < now - MEMBER_MS or (place == broker and name not in members)
        ]
        for name in [*gone, *joined]:
            self.seats.pop(name, None)
            self.holders = {bucket: one for bucket, one in self.holders.items() if one != name}
        for name in members:
            if name in joined or self.seats.get(name, ("", 0))[0] == broker:
                self.seats[name] = broker, now
        return tuple(GroupSeat(name, place) for name, (place, _) in self.seats.items())

    def hold(self, broker: str, member: str, buckets: Sequence[int]) -> set[int]:
        """Give free buckets to a member."""
        if self.seats.get(member, ("", 0))[0] != broker:
            return set()
        free = {bucket for bucket in buckets if bucket not in self.holders}
        self.holders.update(dict.fromkeys(free, member))
        return free

    def let_go(self, member: str, buckets: Sequence[int]) -> None:
        """Free buckets that a member has."""
        for bucket in buckets:
            if self.holders.get(bucket) == member:
                del self.holders[bucket]
