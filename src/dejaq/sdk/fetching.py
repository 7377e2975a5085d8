"""Large bodies of leased rows, fetched before user code gets the rows."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from dejaq.domain.large import reference_of
from dejaq.errors import DejaqError, NoBroker
from dejaq.sdk.grant import Portion
from dejaq.sdk.large import LargeBodies


def within(portions: Sequence[Portion], bytes_max: int) -> tuple[list[Portion], list[Portion]]:
    """The first rows whose large bodies are together not above `bytes_max`, one at least; and the rest."""
    size = 0
    for number, portion in enumerate(portions):
        if not portion.delivery.columns.large:
            continue
        for place, row in enumerate(portion.index):
            reference = reference_of(portion.delivery.columns.bodies[row])
            size += reference.size if reference is not None else 0
            if size > bytes_max and (number or place):
                head, tail = _cut(portion, place)
                return [*portions[:number], *head], [*tail, *portions[number + 1 :]]
    return list(portions), []


def _cut(portion: Portion, place: int) -> tuple[list[Portion], list[Portion]]:
    head = [Portion(portion.delivery, portion.index[:place])] if place else []
    return head, [Portion(portion.delivery, portion.index[place:])]


async def fetched_bodies(bodies: LargeBodies, topic: str, portion: Portion) -> dict[int, bytes | DejaqError]:
    """The large bodies of a portion by place; for one that cannot be had, why. Raises NoBroker when none answers."""
    found: dict[int, bytes | DejaqError] = {}
    if not portion.delivery.columns.large:
        return found
    for place in portion.index:
        reference = reference_of(portion.delivery.columns.bodies[place])
        if reference is not None:
            ahead = portion.delivery.ahead.get(place)
            if ahead is not None:
                await asyncio.wait((ahead,))
                portion.delivery.ahead.pop(place, None)
                if not ahead.cancelled() and ahead.exception() is None:
                    found[place] = ahead.result()
                    continue
            try:
                found[place] = await bodies.fetch(topic, portion.delivery.id_at(place), reference)
            except NoBroker:
                raise
            except DejaqError as error:
                found[place] = error
    return found
