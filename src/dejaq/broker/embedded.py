"""A broker inside the user's own program, with or without a network."""

from __future__ import annotations

import os
import socket
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any

from dejaq.broker.central import Central
from dejaq.broker.inprocess import InProcessTransport
from dejaq.broker.recorder import journal_place
from dejaq.config import BrokerConfig, load_config
from dejaq.directories import make_directory
from dejaq.errors import Code, OutOfState, error_of
from dejaq.journal.origin import origin_of
from dejaq.storage.base import Storage
from dejaq.storage.postgres.connection.address import shard_dsns
from dejaq.storage.sharded.placement import ShardInfo, first_map
from dejaq.synchronization.base import Synchronization
from dejaq.timekeeper.clock import Clock, SystemClock

EMBEDDED = "embedded://"


class Broker:
    """A whole broker as an async context manager.

    `data` is the directory of the embedded store; without it messages live in memory only. `storage` is a store, or
    the address of a shared one (`postgres://...`). `listen` is the host:port to serve on (port 0 takes a free one), and
    `grpc` one for gRPC clients; without both only this process reaches the broker, through `transport()`. Brokers that
    are given one `storage` to share and members of one `synchronization` are a cluster. Every other key of
    `BrokerConfig` is taken by name.
    """

    def __init__(
        self,
        data: str | os.PathLike[str] | None = None,
        *,
        listen: str | None = None,
        grpc: str | None = None,
        metrics: str | None = None,
        clock: Clock | None = None,
        storage: Storage | str | None = None,
        synchronization: Synchronization | str | None = None,
        **keys: Any,
    ) -> None:
        # The memory of the user's program is not the broker's to judge.
        keys.setdefault("memory_bytes_max", 0)
        self.config = load_config(
            env={},
            data=os.fspath(data) if data is not None else None,
            listen=listen if listen is not None else "",
            grpc=grpc,
            metrics=metrics,
            synchronization=synchronization if isinstance(synchronization, str) else None,
            storage=storage if isinstance(storage, str) else None,
            **keys,
        )
        clock = clock if clock is not None else SystemClock()
        if synchronization is None or isinstance(synchronization, str):
            synchronization = synchronization_of(self.config, clock)
        self._central = Central(
            config=self.config,
            storage=storage_of(self.config) if storage is None or isinstance(storage, str) else storage,
            clock=clock,
            synchronization=synchronization,
            shares_loop=True,
        )

        self._started = False

    @property
    def central(self) -> Central:
        """The parts, for those who need to look inside."""
        return self._central

    @property
    def address(self) -> str:
        """host:port with the real port, or `in-process` without a network."""
        return self._central.address or "in-process"

    @property
    def grpc_address(self) -> str:
        """host:port of the gRPC endpoint, with the real port; empty without one."""
        return self._central.grpc.address if self._central.grpc is not None else ""

    def transport(self) -> InProcessTransport:
        """A way to this broker without a network; raises OUT_OF_STATE before it is started."""
        if not self._started:
            raise OutOfState("the broker is not started: use `async with dejaq.Broker(...)`")
        return self._central.transport()

    async def start(self) -> None:
        """Open the store and serve."""
        self._started = True
        await self._central.start()

    async def stop(self) -> None:
        """Let clients finish, then close the store."""
        await self._central.stop()

    async def __aenter__(self) -> Broker:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()


def synchronization_of(config: BrokerConfig, clock: Clock) -> Synchronization | None:
    """The synchronization that a config asks for; None for a broker that is alone."""
    url = config.synchronization
    if url == "local":
        return None
    ttl = float(config.member_ttl)
    if url == "embedded" or url.startswith(EMBEDDED):
        from dejaq.synchronization.embedded import EmbeddedSynchronization, own_peer, parse_peers

        peers = parse_peers(url)
        return EmbeddedSynchronization(
            data=Path(config.data or "data") / "etcd",
            peers=peers,
            own=own_peer(peers, _hosts(config)),
            cluster=config.cluster,
            clock=clock,
            ttl=ttl,
        )
    from dejaq.synchronization.etcd.endpoints import parse_endpoints
    from dejaq.synchronization.etcd.service import EtcdSynchronization

    return EtcdSynchronization(parse_endpoints(url), cluster=config.cluster, clock=clock, ttl=ttl)


def _hosts(config: BrokerConfig) -> list[str]:
    """The names that this machine may have in a list of machines."""
    configured = [address.rpartition(":")[0] for address in (config.advertise, config.listen) if address is not None]
    return [*configured, socket.gethostname(), socket.getfqdn()]


def storage_of(config: BrokerConfig) -> Storage:
    """The store that a config asks for; with keys, one that can encrypt."""
    storage = _plain_storage_of(config)
    if config.encryption_keys is None:
        return storage
    from dejaq.storage.encrypted.providers.chosen import key_provider

    provider = key_provider(config.encryption_keys)
    from dejaq.storage.encrypted.store import EncryptedStorage

    return EncryptedStorage(storage, provider)


def _plain_storage_of(config: BrokerConfig) -> Storage:
    if config.storage is not None:
        return _shared_storage(config, config.storage)
    if config.data is None:
        from dejaq.storage.memory.store import MemoryStorage

        return MemoryStorage()
    from dejaq.storage.rocksdb.store import RocksStorage

    journal = journal_place(config).directory is not None
    return RocksStorage(Path(config.data), window_bytes=config.window_bytes, journal=journal)


def _shared_storage(config: BrokerConfig, storage: str) -> Storage:
    """A store that several brokers use; this one's journal has a name of its own there, kept beside its data."""
    if find_spec("asyncpg") is None:
        raise error_of(Code.INVALID_ARGUMENT, "a PostgreSQL store needs asyncpg, which dejaq-mq[postgres] installs")
    from dejaq.storage.postgres.sharding.shard import PostgresShard
    from dejaq.storage.postgres.store import PostgresStorage
    from dejaq.storage.sharded.store import ShardedStorage

    name = None
    if config.data is not None and journal_place(config).directory is not None:
        home = Path(config.data)
        try:
            make_directory(home)
        except OSError as cause:
            raise error_of(Code.STORE_FAILED, f"cannot make {home}", details=str(cause)) from None
        name = origin_of(home / "outbox")
    connections, dsns = config.storage_connections, shard_dsns(storage)
    if len(dsns) == 1 and config.synchronization == "local":
        return PostgresStorage(dsns.popitem()[1], cluster=config.cluster, journal=name, connections=connections)

    def make(info: ShardInfo) -> PostgresShard:
        # This broker's own configuration has precedence over the shared map.
        dsn = dsns.get(info.name, info.dsn)
        return PostgresShard(
            dsn,
            name=info.name,
            ordinal=info.ordinal,
            cluster=config.cluster,
            journal=name,
            connections=connections,
        )

    return ShardedStorage(first_map(dsns), make)
