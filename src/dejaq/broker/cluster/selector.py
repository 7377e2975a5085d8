"""Recommends a broker: the least loaded of those that are ready. Open sessions are moved by `spreading`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dejaq.broker.cluster.member import Member


@dataclass(frozen=True, slots=True)
class Advice:
    """The addresses of the brokers, best first, and the address to move to; empty: stay."""

    brokers: tuple[str, ...]
    better: str


# A client is sent to another broker only when that balances the load, not for a difference of one session.
ADVANTAGE = 2


def recommend(members: Iterable[Member], *, own: str, load: Callable[[Member], int]) -> list[Member]:
    """The members a client should use, best first; empty when no member is ready.

    This broker is first unless another has clearly fewer clients: a client that has connected should stay.
    """
    well = sorted((member for member in members if member.well), key=lambda member: (load(member), member.id))
    here = next((member for member in well if member.id == own), None)
    if here is not None and load(here) < load(well[0]) + ADVANTAGE:
        well.remove(here)
        well.insert(0, here)
    return well


def relief(members: Iterable[Member], *, own: str, load: Callable[[Member], int]) -> tuple[Member, int] | None:
    """The member that clients of this broker should move to, and how many at one time; None when none should move."""
    loads = {member.id: (load(member), member) for member in members if member.well}
    if own not in loads:
        return None
    least, lightest = min(loads.values(), key=lambda one: (one[0], one[1].id))
    surplus = loads[own][0] - least
    # A part of what would balance them: other brokers move clients there too.
    return (lightest, max(1, surplus // 4)) if surplus >= ADVANTAGE else None
