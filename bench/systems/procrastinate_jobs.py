"""procrastinate on PostgreSQL: jobs deferred a thousand at a time, run by its own worker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version

from procrastinate import App, PsycopgConnector
from procrastinate.exceptions import ConnectorException
from procrastinate.jobs import Job

from bench.harness.payload import Batch
from bench.harness.tally import Tally
from bench.harness.window import Window
from bench.systems.base import System
from bench.systems.postgres_server import PostgresServer, postgres_missing, postgres_version

TASK, QUEUE = "take", "bench"
CONCURRENCY = 8
POLL_SECONDS = 0.01


class ProcrastinateClient:
    """An app with one task."""

    def __init__(self, address: str) -> None:
        self._app = App(
            connector=PsycopgConnector(conninfo=address, min_size=CONCURRENCY + 2, max_size=CONCURRENCY + 2)
        )

    async def open(self, *, produces: bool) -> None:
        await self._app.open_async()
        if not await self._app.check_connection_async():
            try:
                await self._app.schema_manager.apply_schema_async()
            except ConnectorException:
                # Another client created it first.
                if not await self._app.check_connection_async():
                    raise

    async def close(self) -> None:
        await self._app.close_async()

    async def create(self, batches: Iterable[Batch]) -> int:
        window, created = Window(2), 0
        for batch in batches:
            times: Sequence[int | None] = batch.due_ms or [None] * len(batch)
            jobs = [
                Job(
                    queue=QUEUE,
                    lock=None,
                    queueing_lock=None,
                    task_name=TASK,
                    task_kwargs={"body": body.decode("ascii")},
                    scheduled_at=None if due is None else datetime.fromtimestamp(due / 1_000, UTC),
                )
                for body, due in zip(batch.bodies, times, strict=True)
            ]
            await window.add(self._app.job_manager.batch_defer_jobs_async(jobs))
            created += len(batch)
        await window.drain()
        return created

    async def consume(self, tally: Tally) -> None:
        @self._app.task(name=TASK, queue=QUEUE)
        async def take(body: str) -> None:
            tally.taken([body.encode("ascii")])
            tally.deleted(1)

        await self._app.run_worker_async(
            queues=[QUEUE],
            concurrency=CONCURRENCY,
            fetch_job_polling_interval=POLL_SECONDS,
            delete_jobs="always",
            install_signal_handlers=False,
            shutdown_graceful_timeout=2,
        )
        await asyncio.sleep(0)


PROCRASTINATE = System(
    name="procrastinate",
    durable=True,
    server=PostgresServer,
    client=ProcrastinateClient,
    version=lambda: f"{version('procrastinate')} on PostgreSQL {postgres_version()}",
    missing=postgres_missing,
    benches=frozenset({"throughput", "accuracy", "latency"}),
    settings={
        "server": "fsync on, synchronous_commit on, shared_buffers 512MB",
        "client": "batch_defer of 1000, worker with 8 jobs at once, polls every 10 ms, jobs deleted when done",
    },
)
