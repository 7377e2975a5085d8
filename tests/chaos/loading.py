"""Runs a load on a cluster of brokers while faults happen, and checks the history when all messages are consumed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import dejaq
from dejaq.testing.history.history import check_ledger
from dejaq.testing.history.ledger import DeliveryFault
from dejaq.testing.history.workload import Load, Workload
from dejaq.testing.servers.brokers import BrokerCluster
from dejaq.testing.waiting import eventually
from tests.chaos.sizes import new_seed, size

MESSAGES = size("CLUSTER_MESSAGES", ci=1_000, full=30_000)
# Each producer sends half of the messages at this pace, so that the load lasts longer than the faults.
PACE_SECONDS = 0.01


async def under_load(
    cluster: BrokerCluster,
    faults: Callable[[Workload], Awaitable[None]],
    *,
    consumers: int = 3,
    messages: int = MESSAGES,
    early_us_max: int = 0,
) -> Workload:
    """Run a load while `faults` happen: no message is lost, early or leased twice, and one order explains every answer.

    Where clocks may differ by `early_us_max`, messages may be early by as much, and so may the ends of leases, by the
    clock of the machine that checks.
    """
    seed = new_seed()
    async with dejaq.connect(cluster.url, deadline=60) as client:
        load = Load(messages=messages, consumers=consumers, lease_seconds=1.5, pace_seconds=PACE_SECONDS)
        workload = Workload(client, "mail", load, seed=seed)
        running = asyncio.create_task(workload.run())
        try:
            await faults(workload)
            verdict = await running
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        assert verdict.acknowledged == messages
        if early_us_max:
            faults_left = {one.fault for one in verdict.findings} - {
                DeliveryFault.EARLY,
                DeliveryFault.OVERLAP,
                DeliveryFault.STALE,
            }
            assert not faults_left, f"{verdict}\nseed {seed}"
            assert max(early_us_of(workload, name) for name in workload.ledger.sends) <= early_us_max, f"seed {seed}"
        else:
            assert not verdict.findings, f"{verdict}\nseed {seed}"
            found = check_ledger(workload.ledger, workload.left)
            assert found == [], f"{found}\nseed {seed}"
    return workload


def early_us_of(workload: Workload, name: str) -> int:
    """How much too early a message was delivered, in microseconds."""
    due_us = workload.ledger.sends[name].ts_ms * 1_000
    return max(due_us - delivery.handed_us for delivery in workload.ledger.deliveries[name])


async def progressed(workload: Workload, share: float) -> None:
    due = round(workload.load.messages * share)
    await eventually(lambda: workload.acknowledged >= due, within=90, what=f"{due} messages are sent", poll=0.005)
