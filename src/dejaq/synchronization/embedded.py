"""Synchronization by an etcd that the broker starts and manages: one command per machine, nothing else to run.

`embedded` is a single server on this machine. `embedded://host:port,host:port,host:port` names the place of each
machine's server in the cluster, the same list on every machine; the port behind it is where clients of etcd go. A
machine that is new in the list joins the servers that run; one that has lost its directory joins again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

from dejaq.errors import Code, DejaqError, SynchronizationError, SynchronizationFull, error_of
from dejaq.protocol.etcd import rpc_pb2 as rpc
from dejaq.synchronization.base import TTL_SECONDS_DEFAULT, Record, RecordChange
from dejaq.synchronization.etcd.child import EtcdChild, EtcdPlace
from dejaq.synchronization.etcd.endpoints import Endpoints
from dejaq.synchronization.etcd.service import EtcdSynchronization
from dejaq.synchronization.etcd.space import free_space
from dejaq.synchronization.etcd.wire import Wire
from dejaq.timekeeper.clock import Clock

log = logging.getLogger(__name__)

SCHEME = "embedded://"
ALONE = "127.0.0.1:7401"
# How long the first machines wait for each other.
GATHER_SECONDS = 120.0
LOOK_SECONDS = 0.5
# How often space is freed when etcd stays full.
FREE_SECONDS = 30.0


def parse_peers(url: str) -> list[str]:
    """The place of every server that `url` names."""
    if url == "embedded":
        return [ALONE]
    peers = [part.strip() for part in url.removeprefix(SCHEME).split(",")]
    for peer in peers:
        host, _, port = peer.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65_535:
            raise error_of(Code.INVALID_ARGUMENT, f"{peer!r} in {url!r} is not host:port")
    return peers


def own_peer(peers: Sequence[str], hosts: Sequence[str]) -> str:
    """The place in `peers` that is this machine's, by the first of `hosts` that is among them."""
    if len(peers) == 1:
        return peers[0]
    for host in hosts:
        own = [peer for peer in peers if peer == host or peer.rpartition(":")[0] == host]
        if len(own) == 1:
            return own[0]
    raise error_of(
        Code.INVALID_ARGUMENT,
        f"none of {', '.join(peers)} is this machine ({', '.join(hosts)}); set `advertise` to its address in that list",
    )


def client_of(peer: str) -> str:
    """Where clients reach the server whose place in the cluster is `peer`."""
    host, _, port = peer.rpartition(":")
    return f"{host}:{int(port) + 1}"


class EmbeddedSynchronization:
    """A member whose etcd is a child of this process. `own` is this machine's place among `peers`."""

    name = "embedded"

    def __init__(
        self,
        *,
        data: Path,
        peers: Sequence[str],
        own: str,
        cluster: str,
        clock: Clock,
        ttl: float = TTL_SECONDS_DEFAULT,
    ) -> None:
        self._peers = list(peers)
        self._others = [peer for peer in peers if peer != own]
        self._place = EtcdPlace(name=_name(own), data=data, client=client_of(own), peer=own)
        self.child: EtcdChild | None = None
        self._minder: asyncio.Task[None] | None = None
        addresses = (client_of(own), *map(client_of, self._others))
        self._inner = EtcdSynchronization(Endpoints(addresses), cluster=cluster, clock=clock, ttl=ttl)

    @property
    def failure(self) -> str | None:
        """What is wrong, with the child first."""
        if self.child is not None and not self.child.running:
            return f"etcd on this machine has ended and is started again: {self.child.last_words()}"
        return self._inner.failure

    @property
    def full(self) -> str | None:
        """Why records cannot be written, until space is freed here."""
        return self._inner.full

    async def open(self) -> None:
        """Start etcd, wait for the other machines, and become a member."""
        self.child = await self._make_child()
        self.child.start()
        try:
            await self._gather(self.child)
        except BaseException:
            await self.child.stop()
            raise
        self._minder = asyncio.get_running_loop().create_task(self._mind(self.child), name="minder of etcd")

    async def _gather(self, child: EtcdChild) -> None:
        until = asyncio.get_running_loop().time() + GATHER_SECONDS
        while True:
            try:
                await self._inner.open()
                return
            except SynchronizationFull:
                await self._free_space()
            except SynchronizationError as error:
                if not child.running:
                    raise SynchronizationError("etcd did not start", details=child.last_words()) from error
                if asyncio.get_running_loop().time() > until:
                    raise
                log.info("waiting for etcd on the other machines: %s", error)

    async def _mind(self, child: EtcdChild) -> None:
        loop = asyncio.get_running_loop()
        freed = -FREE_SECONDS
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if not child.running:
                log.warning("etcd has ended and is started again: %s", child.last_words())
                child.start()
            elif self._inner.full is not None and loop.time() >= freed + FREE_SECONDS:
                freed = loop.time()
                try:
                    await self._free_space()
                except DejaqError as error:
                    log.warning("space in etcd is freed later: %s", error)

    async def _free_space(self) -> None:
        """Free space in this machine's etcd; every machine does so for its own."""
        log.warning("etcd has no space left; its history is dropped and its file made smaller")
        wire = Wire(Endpoints((self._place.client,)))
        try:
            await free_space(wire)
        finally:
            await wire.close()

    async def close(self) -> None:
        """Leave, and stop etcd."""
        await self._inner.close()
        if self._minder is not None:
            self._minder.cancel()
            await asyncio.wait((self._minder,))
            self._minder = None
        if self.child is not None:
            await self.child.stop()

    async def _make_child(self) -> EtcdChild:
        """A child that continues with its directory, founds the cluster, or joins the one that runs."""
        members = [(_name(peer), peer) for peer in self._peers]
        if (self._place.data / "member").exists() or not self._others:
            return EtcdChild(self._place, members)
        wire = Wire(Endpoints(tuple(map(client_of, self._others))))
        try:
            answer = await wire.call("Cluster.MemberList", rpc.MemberListRequest(), rpc.MemberListResponse, seconds=1.0)
            return await self._join(wire, list(answer.response.members), members)
        except SynchronizationError:
            # Nobody answers: the cluster is about to be founded.
            return EtcdChild(self._place, members)
        finally:
            await wire.close()

    async def _join(self, wire: Wire, there: list[rpc.Member], founders: list[tuple[str, str]]) -> EtcdChild:
        url = f"http://{self._place.peer}"
        own = next((member for member in there if url in member.peerURLs), None)
        if own is not None and own.name and not own.clientURLs:
            # A founder that has not started yet.
            return EtcdChild(self._place, founders)
        if own is not None and own.clientURLs:
            log.warning("etcd's directory %s is lost; this machine joins again", self._place.data)
            await wire.call("Cluster.MemberRemove", rpc.MemberRemoveRequest(ID=own.ID), rpc.MemberRemoveResponse)
            own = None
        if own is None:
            request = rpc.MemberAddRequest(peerURLs=[url])
            there = list((await wire.call("Cluster.MemberAdd", request, rpc.MemberAddResponse)).response.members)
        names = {member.peerURLs[0]: member.name for member in there}
        members = [
            (self._place.name if address == url else name, address.removeprefix("http://"))
            for address, name in names.items()
        ]
        return EtcdChild(self._place, members, existing=True)

    # What the contract asks for is etcd's

    def serving_until(self) -> float:
        """The membership's local deadline."""
        return self._inner.serving_until()

    async def get(self, key: str) -> Record | None:
        """The record."""
        return await self._inner.get(key)

    async def under(self, prefix: str) -> list[Record]:
        """The records under a prefix."""
        return await self._inner.under(prefix)

    async def put(
        self, key: str, value: bytes, *, expected: int | None = None, bound: bool = False, comes_back: bool = True
    ) -> Record | None:
        """Write a record."""
        return await self._inner.put(key, value, expected=expected, bound=bound, comes_back=comes_back)

    async def put_bound(self, values: Mapping[str, bytes]) -> None:
        """Write bound records together."""
        await self._inner.put_bound(values)

    async def remove(self, key: str, *, expected: int | None = None) -> bool:
        """Remove a record."""
        return await self._inner.remove(key, expected=expected)

    def watch(self, prefix: str) -> AsyncIterator[list[RecordChange]]:
        """Every record, then every change."""
        return self._inner.watch(prefix)


def _name(peer: str) -> str:
    return peer.replace(":", "-").replace("[", "").replace("]", "")
