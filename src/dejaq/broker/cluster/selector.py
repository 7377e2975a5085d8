"""Recommends a broker: the least loaded of those that are well."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dejaq.broker.cluster.member import Member


@dataclass(frozen=True, slots=True)
class Advice:
    """The addresses of the brokers, best first, and the one to go to; empty: stay."""

    brokers: tuple[str, ...]
    better: str


# A client is sent away only when that evens the load out, and not for the sake of one session.
ADVANTAGE = 2


def recommend(members: Iterable[Member], *, own: str, load: Callable[[Member], int]) -> list[Member]:
    """The members a client should use, best first; none is there when none is well.

    The own broker comes first unless another has clearly less to do: who has come this far should stay.
    """
    well = sorted((member for member in members if member.well), key=lambda member: (load(member), member.id))
    here = next((member for member in well if member.id == own), None)
    if here is not None and load(here) < load(well[0]) + ADVANTAGE:
        well.remove(here)
        well.insert(0, here)
    return well
