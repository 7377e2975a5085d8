"""Celery with ETA on Redis: later tasks wait in the worker's memory."""

from __future__ import annotations

import asyncio
import threading
import time
import warnings
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from celery import Celery
from celery.exceptions import WorkerShutdown
from celery.worker import state

from bench.harness.payload import Batch
from bench.harness.tally import Tally
from bench.systems.base import System
from bench.systems.redis_queue import RedisServer, redis_missing, redis_version

TASK = "take"
POLL_SECONDS = 0.02


class CeleryClient:
    """An app with one task; consuming runs a worker in this process."""

    def __init__(self, address: str) -> None:
        self._app = Celery("bench", broker=f"redis://{address}/0", set_as_current=False)
        self._app.conf.update(
            task_ignore_result=True,
            worker_prefetch_multiplier=0,
            task_acks_late=True,
            broker_connection_retry_on_startup=True,
            worker_hijack_root_logger=False,
            broker_transport_options={"visibility_timeout": 7_200},
        )

    async def open(self, *, produces: bool) -> None:
        self._app.connection_for_write().ensure_connection(max_retries=3)

    async def close(self) -> None:
        self._app.close()

    async def create(self, batches: Iterable[Batch]) -> int:
        created = 0
        with self._app.producer_pool.acquire(block=True) as producer:
            for batch in batches:
                for row, body in enumerate(batch.bodies):
                    eta = None if batch.due_ms is None else datetime.fromtimestamp(batch.due_ms[row] / 1_000, UTC)
                    self._app.send_task(TASK, args=(body.decode("ascii"),), eta=eta, producer=producer)
                created += len(batch)
                await asyncio.sleep(0)
        return created

    async def consume(self, tally: Tally) -> None:
        @self._app.task(name=TASK)
        def take(body: str) -> None:
            tally.taken([body.encode("ascii")])
            tally.deleted(1)

        warnings.filterwarnings("ignore", message=".*superuser privileges")
        worker: Any = self._app.Worker(
            pool="threads",
            concurrency=1,
            quiet=True,
            loglevel="ERROR",
            without_heartbeat=True,
            without_mingle=True,
            without_gossip=True,
        )
        threading.Thread(target=_stop_when_done, args=(tally,), daemon=True).start()
        with suppress(WorkerShutdown, SystemExit):
            worker.start()


def _stop_when_done(tally: Tally) -> None:
    while not tally.done():
        time.sleep(POLL_SECONDS)
    # The worker's loop checks this regularly.
    state.should_stop = 0


CELERY = System(
    name="celery",
    durable=False,
    server=lambda folder: RedisServer(folder, "everysec"),
    client=CeleryClient,
    version=lambda: f"{version('celery')} on Redis {redis_version()}",
    missing=redis_missing,
    benches=frozenset({"throughput", "accuracy", "latency"}),
    settings={
        "server": "Redis, appendfsync everysec",
        "client": "one send_task per message, worker with one thread, prefetch without limit, acks late",
        "later": "ETA, held by the worker",
    },
)
