"""A broker inside the user's own program, with or without a network."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any

from dejaq.broker.central import Central
from dejaq.broker.inprocess import InProcessTransport
from dejaq.broker.recorder import journal_place
from dejaq.config import BrokerConfig, load_config
from dejaq.storage.base import Storage
from dejaq.timekeeper.clock import Clock, SystemClock


class Broker:
    """A whole broker as an async context manager.

    `data` is the directory of the embedded store; without it messages live in memory only. `listen` is the
    host:port to serve on (port 0 takes a free one); without it only this process reaches the broker, through
    `transport()`. Every other key of `BrokerConfig` is taken by name.
    """

    def __init__(
        self,
        data: str | os.PathLike[str] | None = None,
        *,
        listen: str | None = None,
        metrics: str | None = None,
        clock: Clock | None = None,
        storage: Storage | None = None,
        **keys: Any,
    ) -> None:
        # The memory of the user's program is not the broker's to judge.
        keys.setdefault("memory_bytes_max", 0)
        self.config = load_config(
            env={},
            data=os.fspath(data) if data is not None else None,
            listen=listen if listen is not None else "",
            metrics=metrics,
            **keys,
        )
        self._central = Central(
            config=self.config,
            storage=storage if storage is not None else storage_of(self.config),
            clock=clock if clock is not None else SystemClock(),
        )

    @property
    def central(self) -> Central:
        """The parts, for those who need to look inside."""
        return self._central

    @property
    def address(self) -> str:
        """host:port with the real port, or `in-process` without a network."""
        return self._central.address or "in-process"

    def transport(self) -> InProcessTransport:
        """A way to this broker without a network."""
        return self._central.transport()

    async def start(self) -> None:
        """Open the store and serve."""
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


def storage_of(config: BrokerConfig) -> Storage:
    """The store that a config asks for."""
    if config.data is None:
        from dejaq.storage.memory import MemoryStorage

        return MemoryStorage()
    from dejaq.storage.rocksdb.store import RocksStorage

    journal = journal_place(config).directory is not None
    return RocksStorage(Path(config.data), window_bytes=config.window_bytes, journal=journal)
