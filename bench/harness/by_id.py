"""Changes by id: what the client process does with the ids that it draws at random from a pending load."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Sequence

from bench.harness.orders import ChangeById, Done
from bench.harness.payload import FAR_MS, FAR_PREFIX, Load, stamped
from bench.systems.base import ChangerById

MOVE_SPREAD_MS = 30 * 86_400_000


def drawn_ids(order: ChangeById) -> list[str]:
    """The ids, each once, in random order; the same in every run."""
    rows = random.Random(f"{order.kind}{order.batch}").sample(range(order.population), order.count)
    # Only the ids matter here, and those do not depend on the times.
    load = Load(count=order.first + order.population, prefix=FAR_PREFIX, start_ms=0, scatter_ms=1)
    return [load.id_of(order.first + row) for row in rows]


async def change_by_id(changer: ChangerById, order: ChangeById, wait_for_go: Callable[[], int]) -> Done:
    """Do all calls, so many in flight, until they are done or the time is over."""
    ids = drawn_ids(order)
    chance = random.Random(order.kind)
    soonest_ms = time.time_ns() // 1_000_000 + FAR_MS
    times = [soonest_ms + chance.randrange(MOVE_SPREAD_MS) for _ in ids] if order.kind == "move" else []
    body = stamped(0)
    changed = 0

    async def change(cut: slice) -> None:
        chosen = ids[cut]
        if order.kind == "get":
            found = await changer.get(chosen)
            if found != len(chosen):
                raise RuntimeError(f"{len(chosen) - found} of {len(chosen)} pending messages were not found")
        elif order.kind == "move":
            await changer.move(chosen, times[cut])
        elif order.kind == "edit":
            await changer.edit(chosen, [body] * len(chosen))
        else:
            await changer.cancel(chosen)

    async def work(cuts: Iterator[slice], end_ns: int) -> None:
        nonlocal changed
        for cut in cuts:
            if time.time_ns() > end_ns:
                return
            await change(cut)
            changed += len(ids[cut])

    await changer.open()
    try:
        start_ns = wait_for_go()
        cuts = iter(_cuts(ids, order.batch))
        end_ns = start_ns + int(order.seconds_max * 1e9)
        async with asyncio.timeout(order.seconds_max + 15.0):
            await asyncio.gather(*(work(cuts, end_ns) for _ in range(order.in_flight)))
        return Done(count=changed, start_ns=start_ns, end_ns=time.time_ns())
    finally:
        await changer.close()


def _cuts(ids: Sequence[str], size: int) -> list[slice]:
    return [slice(first, first + size) for first in range(0, len(ids), size)]
