"""A proxy in front of PostgreSQL that cuts a connection around the commit of a change."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from dejaq.testing.servers.process import HOST

COMMIT = b"Q\x00\x00\x00\x0bCOMMIT\x00"
_CHUNK_BYTES = 1 << 16


class Cutter:
    """Forwards bytes in both directions; when armed, it cuts the next connection that sends `at`.

    `before`: the server never receives the command. Otherwise the server executes it, and the answer is not forwarded.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._at: bytes | None = None
        self._before = False
        self._server: asyncio.Server | None = None
        self._passing: set[asyncio.Task[None]] = set()
        self.cuts = 0

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def arm(self, *, at: bytes = COMMIT, before: bool) -> None:
        self._at, self._before = at, before

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, HOST, 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._passing:
            task.cancel()
        await asyncio.gather(*self._passing, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._passing.add(task)
        up_reader, up_writer = await asyncio.open_connection(HOST, self._target)
        silent = asyncio.Event()
        back = asyncio.ensure_future(self._back(up_reader, writer, silent))
        try:
            while data := await reader.read(_CHUNK_BYTES):
                if self._at is not None and self._at in data:
                    self._at = None
                    self.cuts += 1
                    silent.set()
                    if not self._before:
                        up_writer.write(data)
                        await up_writer.drain()
                        # The answer shows that the command was executed; it is not forwarded.
                        await back
                    return
                up_writer.write(data)
                await up_writer.drain()
        except OSError:
            pass
        finally:
            back.cancel()
            writer.close()
            up_writer.close()
            self._passing.discard(task)

    async def _back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, silent: asyncio.Event) -> None:
        while data := await reader.read(_CHUNK_BYTES):
            if silent.is_set():
                return
            writer.write(data)
        writer.close()
