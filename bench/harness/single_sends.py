"""Single sends: what one client process does, and how long each acknowledgement takes."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable

from bench.harness.orders import Done, SingleSends
from bench.systems.base import Refused, SingleSender

# Beyond `seconds_max`, for the calls that are in flight by then; a client may try again for half a minute.
GRACE_SECONDS = 60.0


async def send_singly(sender: SingleSender, order: SingleSends, wait_for_go: Callable[[], int]) -> Done:
    """Every producer sends its share of the load, one message after the other, until the time is over."""
    await sender.open(connections=order.connections, producers=order.producers)
    took_us, refused = array("q"), 0
    try:
        start_ns = wait_for_go()
        end_ns = start_ns + int(order.seconds_max * 1e9)
        last_ns = start_ns

        async def produce(producer: int) -> None:
            nonlocal refused, last_ns
            number, parts = order.process * order.producers + producer, order.processes * order.producers
            for message_id, body, due_ms in order.load.part(number, parts):
                began_ns = time.time_ns()
                if began_ns > end_ns:
                    return
                try:
                    await sender.send(producer, message_id, body, due_ms)
                except Refused:
                    refused += 1
                    return
                last_ns = time.time_ns()
                took_us.append((last_ns - began_ns) // 1_000)

        async with asyncio.timeout(order.seconds_max + GRACE_SECONDS):
            await asyncio.gather(*map(produce, range(order.producers)))
    finally:
        await sender.close()
    return Done(count=len(took_us), start_ns=start_ns, end_ns=last_ns, late_us=took_us.tobytes(), refused=refused)
