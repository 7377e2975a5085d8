"""Real etcd servers on loopback, started and stopped by a test.

async with EtcdCluster(tmp_path, size=3) as etcd:
    ...                         # etcd.url
    await etcd.kill_leader()
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from dejaq.errors import SynchronizationError, SynchronizationFull
from dejaq.protocol.etcd import rpc_pb2 as rpc
from dejaq.synchronization.etcd.child import EtcdChild, EtcdPlace
from dejaq.synchronization.etcd.endpoints import Endpoints
from dejaq.synchronization.etcd.space import free_space
from dejaq.synchronization.etcd.wire import Wire
from dejaq.testing.servers.network import Network
from dejaq.testing.servers.process import HOST, free_port
from dejaq.testing.waiting import eventually

READY_SECONDS = 30.0


class EtcdCluster:
    """A number of etcd servers in one cluster."""

    def __init__(
        self, path: Path, *, size: int = 1, options: Sequence[str] = (), network: Network | None = None
    ) -> None:
        """On a network each server has a machine of its own, named etcd-0 and so on."""
        self.machines = [network.machine(f"etcd-{number}") for number in range(size)] if network is not None else []
        hosts = [machine.host for machine in self.machines] or [HOST] * size
        places = [
            EtcdPlace(
                name=f"etcd-{number}",
                data=path / f"etcd-{number}",
                client=f"{host}:{2379 if self.machines else free_port()}",
                peer=f"{host}:{2380 if self.machines else free_port()}",
            )
            for number, host in enumerate(hosts)
        ]
        members = [(place.name, place.peer) for place in places]
        wrappers = [machine.wrapper for machine in self.machines] or [[]] * size
        self.servers = [
            EtcdChild(place, members, options=options, wrapper=wrapper)
            for place, wrapper in zip(places, wrappers, strict=True)
        ]

    @property
    def addresses(self) -> list[str]:
        """host:port of each server."""
        return [server.place.client for server in self.servers]

    @property
    def url(self) -> str:
        """The address that a broker gets."""
        return f"etcd://{','.join(self.addresses)}"

    def endpoints(self, *addresses: str) -> Endpoints:
        """The endpoints of all servers, or of these servers, for a client."""
        return Endpoints(addresses or tuple(self.addresses))

    async def ready(self) -> None:
        """Wait until every running server knows a leader."""
        for server in self.servers:
            if server.running:
                await eventually(
                    lambda server=server: self.leader(server),  # type: ignore[misc]
                    within=READY_SECONDS,
                    what=f"etcd at {server.place.client} has a leader; it says {server.last_words()}",
                    poll=0.05,
                )

    async def leader(self, server: EtcdChild) -> int:
        """The id of the leader that a server knows; 0 for none."""
        status = await self._status(server)
        return 0 if status is None else status.leader

    async def _status(self, server: EtcdChild) -> rpc.StatusResponse | None:
        wire = Wire(self.endpoints(server.place.client))
        try:
            answer = await wire.call("Maintenance.Status", rpc.StatusRequest(), rpc.StatusResponse, seconds=0.1)
            return answer.response
        except SynchronizationError:
            return None
        finally:
            await wire.close()

    async def kill_leader(self) -> EtcdChild:
        """Kill the leader and return its server."""
        for server in self.servers:
            status = await self._status(server) if server.running else None
            if status is not None and status.leader == status.header.member_id:
                server.kill()
                return server
        raise AssertionError("no server leads")

    def pause(self, server: EtcdChild) -> None:
        """Pause a server with a signal."""
        self._signal(server, signal.SIGSTOP)

    def resume(self, server: EtcdChild) -> None:
        """Let a paused server continue."""
        self._signal(server, signal.SIGCONT)

    def _signal(self, server: EtcdChild, number: signal.Signals) -> None:
        if server.pid is None:
            raise RuntimeError(f"{server.place.name} does not run")
        os.kill(server.pid, number)

    async def start(self) -> None:
        """Start the servers that do not run, and wait for a leader."""
        for server in self.servers:
            if not server.running:
                server.start()
        await self.ready()

    async def fill(self) -> None:
        """Write until the space is used up; needs an option such as --quota-backend-bytes=2000000."""
        wire = Wire(self.endpoints())
        put = rpc.RequestOp(request_put=rpc.PutRequest(key=b"/filler", value=bytes(200_000)))
        try:
            for _ in range(10_000):
                await wire.call("KV.Txn", rpc.TxnRequest(success=[put]), rpc.TxnResponse)
            raise AssertionError("etcd was not full after 2 GB")
        except SynchronizationFull:
            return
        finally:
            await wire.close()

    async def free_space(self) -> None:
        """Free space, as an administrator of a full etcd does."""
        for address in self.addresses:
            wire = Wire(self.endpoints(address))
            try:
                await free_space(wire)
            finally:
                await wire.close()

    def kill(self) -> None:
        """Stop every server."""
        for server in self.servers:
            server.kill()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            self.kill()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.kill)
