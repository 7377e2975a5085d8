"""A connection to Redis that many tasks share: commands are written at once, answers come in the same order."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

import hiredis


class PipelinedRedis:
    """Commands in flight on one connection, without waiting for the answers of earlier ones."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._expected: deque[asyncio.Future[object]] = deque()
        self._unsent: list[bytes] = []
        self._reader = hiredis.Reader()

    async def open(self) -> None:
        """Connect."""
        self._input, self._output = await asyncio.open_connection("127.0.0.1", self._port)
        self._reading = asyncio.create_task(self._read())

    def call(self, *command: str | bytes | int) -> asyncio.Future[object]:
        """Send a command; the answer, or the error that Redis answered with. Calls without an await stay together."""
        if self._reading.done():
            raise ConnectionError("the connection to Redis ended")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[object] = loop.create_future()
        self._expected.append(answer)
        if not self._unsent:
            # Commands of the same turn of the event loop go out in one write.
            loop.call_soon(self._flush)
        self._unsent.append(hiredis.pack_command(command))  # type: ignore[arg-type, unused-ignore]
        return answer

    def _flush(self) -> None:
        self._output.write(b"".join(self._unsent))
        self._unsent.clear()

    async def close(self) -> None:
        """Disconnect."""
        self._reading.cancel()
        with suppress(asyncio.CancelledError):
            await self._reading
        self._output.close()
        with suppress(OSError):
            await self._output.wait_closed()

    async def _read(self) -> None:
        try:
            while received := await self._input.read(1 << 16):
                self._reader.feed(received)
                # hiredis gives False when it has no whole answer; no command here is answered with False.
                while (answer := self._reader.gets()) is not False:
                    waiting = self._expected.popleft()
                    if waiting.cancelled():
                        continue
                    if isinstance(answer, Exception):
                        waiting.set_exception(answer)
                    else:
                        waiting.set_result(answer)
        finally:
            for waiting in self._expected:
                if not waiting.done():
                    waiting.set_exception(ConnectionError("the connection to Redis ended"))
