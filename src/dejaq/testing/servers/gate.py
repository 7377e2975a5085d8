"""A TCP proxy on loopback between clients and a server, which a test closes and opens.

async with Gate("127.0.0.1:2379") as gate:
    ...                 # clients use gate.address
    gate.close()        # silence both ways, as a cut cable: connections stay, nothing passes
    gate.open()
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Self

from dejaq.testing.servers.process import HOST, free_port

_CHUNK_BYTES = 1 << 16


class Gate:
    """Forwards bytes between its clients and `target` while it is open."""

    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self.port = free_port()
        self._inward = asyncio.Event()
        self._outward = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._pairs: set[asyncio.Task[None]] = set()
        self.open()

    @property
    def address(self) -> str:
        """host:port of the gate."""
        return f"{HOST}:{self.port}"

    def open(self) -> None:
        """Forward all bytes, including those that have waited."""
        self._inward.set()
        self._outward.set()

    def close(self, *, inward: bool = True, outward: bool = True) -> None:
        """Forward nothing to the target (`inward`), from it (`outward`), or in both directions."""
        if inward:
            self._inward.clear()
        if outward:
            self._outward.clear()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, HOST, self.port)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        for pair in list(self._pairs):
            pair.cancel()
        await asyncio.gather(*self._pairs, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._pairs.add(task)
        far_writer: asyncio.StreamWriter | None = None
        try:
            await self._inward.wait()
            far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
            ways = (self._pass(reader, far_writer, self._inward), self._pass(far_reader, writer, self._outward))
            tasks = [asyncio.ensure_future(way) for way in ways]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in tasks:
                    way.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._pairs.discard(task)
            for end in (writer, far_writer):
                if end is not None:
                    end.close()
                    with suppress(OSError):
                        await end.wait_closed()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event) -> None:
        while chunk := await reader.read(_CHUNK_BYTES):
            await gate.wait()
            writer.write(chunk)
            await writer.drain()
