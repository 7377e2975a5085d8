"""DejaQ for programs without an event loop: the same client, whose calls wait for their results.

    with dejaq.sync.connect("dejaq://127.0.0.1:7400") as client:
        with client.producer("mail", group="billing") as producer:
            producer.send(b"hello", delay=2.5)
        with client.consumer("mail", name="worker-1") as consumer:
            for lease in consumer:
                lease.delete()

One thread runs the event loop of a client; its objects may be used from any other thread. The classes are generated
from those of `dejaq`, so every method of the async client exists here under the same name.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any, Self

from dejaq.sdk.blocking.client import Client, connect
from dejaq.sdk.blocking.consumer import Batches, Consumer
from dejaq.sdk.blocking.cron import Cron
from dejaq.sdk.blocking.dead_letters import DeadLetters
from dejaq.sdk.blocking.group import LogGroup, LogWorker
from dejaq.sdk.blocking.lease import Batch, Lease
from dejaq.sdk.blocking.log import Log
from dejaq.sdk.blocking.portal import Portal
from dejaq.sdk.blocking.producer import Producer
from dejaq.sdk.blocking.reader import LogReader
from dejaq.sdk.blocking.rights import Rights
from dejaq.sdk.blocking.transaction import Transaction
from dejaq.sdk.blocking.worker import Worker

__all__ = [
    "Batch",
    "Batches",
    "Broker",
    "Client",
    "Consumer",
    "Cron",
    "DeadLetters",
    "Lease",
    "Log",
    "LogGroup",
    "LogReader",
    "LogWorker",
    "Producer",
    "Rights",
    "Transaction",
    "Worker",
    "connect",
]

# A store may need long to open, and a broker may wait long for its clients to finish.
CALL_SECONDS = 600.0


class Broker:
    """A `dejaq.Broker` for a program without an event loop, with the same arguments. Clients connect to its `url`."""

    def __init__(self, data: str | os.PathLike[str] | None = None, **keys: Any) -> None:
        from dejaq.broker import Broker as AsyncBroker

        self._inner = AsyncBroker(data, **{"listen": "127.0.0.1:0", **keys})
        self._portal = Portal("broker", seconds=CALL_SECONDS)

    @property
    def address(self) -> str:
        """The `host:port` on which the broker serves, with the real port."""
        return self._inner.address

    @property
    def url(self) -> str:
        """The address to which a client connects."""
        return f"dejaq://{self.address}"

    def start(self) -> None:
        """Open the store and serve."""
        self._portal.start()
        try:
            self._portal.run(self._inner.start())
        except BaseException:
            self._portal.stop()
            raise

    def stop(self) -> None:
        """Let clients finish, then close the store. A second call changes nothing."""
        if not self._portal.is_open:
            return
        try:
            self._portal.run(self._inner.stop())
        finally:
            self._portal.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
