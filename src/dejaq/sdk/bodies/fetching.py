"""Fetches the large bodies of leased rows before user code gets the rows."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from dejaq.domain.bodies.large import reference_of
from dejaq.errors import DejaqError, NoBroker
from dejaq.sdk.bodies.large import LargeBodyClient
from dejaq.sdk.consuming.grant import DeliveryPart


def within(portions: Sequence[DeliveryPart], bytes_max: int) -> tuple[list[DeliveryPart], list[DeliveryPart]]:
    """The first rows whose large bodies together have at most `bytes_max` bytes, at least one row;
    and the other rows.
    """
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


def _cut(portion: DeliveryPart, place: int) -> tuple[list[DeliveryPart], list[DeliveryPart]]:
    head = [DeliveryPart(portion.delivery, portion.index[:place])] if place else []
    return head, [DeliveryPart(portion.delivery, portion.index[place:])]


async def fetched_bodies(bodies: LargeBodyClient, topic: str, portion: DeliveryPart) -> dict[int, bytes | DejaqError]:
    """The large bodies of a portion by place, or the error of a body that cannot be read.

    Raises NoBroker when no broker answers.
    """
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
