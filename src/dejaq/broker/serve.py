"""A broker as a process of its own: runs until a signal stops it, then drains."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from collections.abc import Callable

from dejaq.broker.central import Central
from dejaq.broker.embedded import storage_of, synchronization_of
from dejaq.config import BrokerConfig
from dejaq.protocol.blocks import keep_blocks
from dejaq.timekeeper.clock import SystemClock

log = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT)


async def serve(config: BrokerConfig, *, started: Callable[[Central], None] | None = None) -> None:
    """Serve until SIGTERM or SIGINT, then let clients finish and return; a second signal does not wait for them."""
    keep_blocks()
    clock = SystemClock()
    central = Central(
        config=config,
        storage=storage_of(config),
        clock=clock,
        synchronization=synchronization_of(config, clock),
    )
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    hurried = asyncio.Event()

    def on_signal() -> None:
        (hurried if stopping.is_set() else stopping).set()

    await central.start()
    # Modules and parts live as long as the process: left out, a full collection takes microseconds and not 13 ms.
    gc.freeze()
    # A broker makes hundreds of short-lived objects per message, hardly any of them in a cycle, and with many consumers
    # it has many that live on: collections at the usual thresholds look at these again and again.
    gc.set_threshold(10_000, 20, 50)
    for number in SIGNALS:
        loop.add_signal_handler(number, on_signal)
    try:
        if started is not None:
            started(central)
        await stopping.wait()
        log.info("draining")
        draining = loop.create_task(central.drain())
        hurry = loop.create_task(hurried.wait())
        await asyncio.wait((draining, hurry), return_when=asyncio.FIRST_COMPLETED)
        for task in (draining, hurry):
            task.cancel()
        await central.stop(drain=False)
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
