"""DejaQ as a cluster: three brokers on one PostgreSQL server and one etcd."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextlib import AsyncExitStack
from importlib.metadata import version
from pathlib import Path

from bench.harness.server import ServerFailed
from bench.systems.base import System
from bench.systems.dejaq_broker import DejaqClient
from bench.systems.postgres_server import PostgresServer, postgres_missing, postgres_version
from dejaq.testing.servers.brokers import BrokerCluster
from dejaq.testing.servers.etcd import EtcdCluster

BROKERS = 3
START_SECONDS = 120.0
STOP_SECONDS = 60.0


class DejaqClusterServer:
    """Three brokers, PostgreSQL and etcd, all new; the CPU time and the memory of all count."""

    def __init__(self, folder: Path) -> None:
        self.address = ""
        self._folder = folder
        self._postgres = PostgresServer(folder)
        self._pids: list[int] = []
        self._changed = threading.Event()
        self._end: asyncio.Event | None = None
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Start everything; return when each broker sees the others. A bench starts it once."""
        self._postgres.start()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        if not self._changed.wait(START_SECONDS) or self._error is not None:
            raise ServerFailed(f"the cluster did not start: {self._error!r}")

    async def _run(self) -> None:
        """Start etcd and the brokers, and end them when `stop` asks for it."""
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with AsyncExitStack() as stack:
                etcd = await stack.enter_async_context(EtcdCluster(self._folder))
                brokers = BrokerCluster(self._postgres.address, etcd.url, size=BROKERS)
                cluster = await stack.enter_async_context(brokers)
                self.address = ",".join(broker.address for broker in cluster.brokers)
                servers = [server.pid for server in etcd.servers if server.pid is not None]
                self._pids = [*(broker.pid for broker in cluster.brokers), *servers, self._postgres.pid]
                self._changed.set()
                await self._end.wait()
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._changed.set()

    def stop(self) -> None:
        """End the brokers, then etcd and PostgreSQL."""
        if self._thread is not None and self._loop is not None and self._end is not None:
            if self._thread.is_alive():
                self._loop.call_soon_threadsafe(self._end.set)
            self._thread.join(STOP_SECONDS)
        self._postgres.stop()

    def discard(self) -> None:
        """Remove the data of the PostgreSQL server."""
        self._postgres.discard()

    @property
    def pid(self) -> int:
        return self._pids[0]

    @property
    def pids(self) -> Sequence[int]:
        return self._pids

    def fsyncs(self) -> int | None:
        """Unknown: PostgreSQL syncs."""
        return None


def system(name: str) -> System:
    """DejaQ on three brokers with natural ids."""
    return System(
        name=name,
        durable=True,
        server=DejaqClusterServer,
        client=lambda address: DejaqClient(address, natural=True),
        version=lambda: f"{version('dejaq-mq')}, PostgreSQL {postgres_version()}",
        missing=postgres_missing,
        benches=frozenset({"fleet"}),
        settings={
            "server": f"{BROKERS} brokers on one PostgreSQL server and one etcd, fsync and synchronous_commit on, "
            "journal; CPU and memory of all five processes together",
            "client": "SDK, connected to all brokers",
            "ids": "natural",
        },
    )
