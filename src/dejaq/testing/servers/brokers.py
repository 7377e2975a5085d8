"""A cluster of broker processes on one PostgreSQL and one etcd, for tests that kill, pause and cut them.

async with BrokerCluster(dsn, etcd.url, size=3) as cluster:
    client = dejaq.connect(cluster.url)
    cluster.brokers[0].kill()
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from dejaq.errors import DejaqError
from dejaq.protocol.v1 import overseer_pb2 as overseer
from dejaq.protocol.websocket.transport import WebSocketTransport
from dejaq.testing.servers.network import Network
from dejaq.testing.servers.process import BrokerProcess
from dejaq.testing.waiting import eventually

READY_SECONDS = 60.0


class BrokerCluster:
    """A number of brokers, named broker-0 and so on; each may have its own address of etcd and of the store, and a
    prelude.
    """

    def __init__(
        self,
        storage: str | Callable[[int], str],
        synchronization: str | Callable[[int], str],
        *,
        size: int = 3,
        options: Sequence[str] = (),
        preludes: Sequence[str] = (),
        network: Network | None = None,
        name: str | None = None,
        data: Path | None = None,
        journal: Path | None = None,
    ) -> None:
        """On a network each broker has a machine of its own, with the broker's name.

        Each broker has a directory for its own files below `data` and `journal`.
        """
        self.machines = [network.machine(f"broker-{number}") for number in range(size)] if network is not None else []
        self.name = name or f"test-{secrets.token_hex(4)}"
        self.brokers = [
            BrokerProcess(
                storage=storage if isinstance(storage, str) else storage(number),
                options=[
                    *("--cluster", self.name, "--broker", f"broker-{number}"),
                    *(
                        "--synchronization",
                        synchronization if isinstance(synchronization, str) else synchronization(number),
                    ),
                    *(("--insecure",) if self.machines else ()),
                    *(("--data", str(data / f"broker-{number}")) if data is not None else ()),
                    *(("--journal", str(journal / f"broker-{number}")) if journal is not None else ()),
                    *options,
                ],
                machine=self.machines[number] if self.machines else None,
                prelude=preludes[number] if preludes else "",
            )
            for number in range(size)
        ]

    @property
    def url(self) -> str:
        """The address to which a client connects."""
        return f"dejaq://{','.join(broker.address for broker in self.brokers)}"

    async def info(self, number: int = 0) -> overseer.InfoResponse | None:
        """One broker's view of the cluster; None when it does not answer."""
        transport = WebSocketTransport(self.brokers[number].address)
        try:
            return await transport.call("Overseer.Info", overseer.InfoRequest(), overseer.InfoResponse, 2.0)
        except DejaqError:
            return None
        finally:
            await transport.close()

    async def whole(self, *, within: float = READY_SECONDS) -> None:
        """Wait until each broker sees every other broker in good health."""

        async def seen(number: int) -> bool:
            info = await self.info(number)
            # A clock that jumped is reported for a while after it is correct again.
            return (
                info is not None
                and len(info.brokers) == len(self.brokers)
                and all("jumped" in why for broker in info.brokers for why in broker.degradations)
            )

        for number in range(len(self.brokers)):
            await eventually(
                lambda number=number: seen(number),  # type: ignore[misc]
                within=within,
                what=f"broker {number} sees all; its log ends {self.brokers[number].log()[-500:]}",
                poll=0.1,
            )

    async def __aenter__(self) -> Self:
        try:
            for broker in self.brokers:
                broker.start()
            await asyncio.gather(*(broker.ready(within=READY_SECONDS) for broker in self.brokers))
            await self.whole()
        except BaseException:
            self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            for broker in self.brokers:
                error.add_note(f"the log of {broker.address} ends:\n{broker.log()[-3_000:]}")
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """End every broker."""
        for broker in self.brokers:
            broker.close()
