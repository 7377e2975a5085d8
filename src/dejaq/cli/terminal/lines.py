"""Lines of a file, a pipe or a terminal, as they arrive, without blocking the event loop."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator

CHUNK_BYTES = 256 * 1024
# A body of the largest size in JSON, with every byte escaped, and room for the rest of the row.
LINE_BYTES_MAX = 8 * 1024 * 1024
CHUNKS_AHEAD = 4


async def lines_of(descriptor: int) -> AsyncIterator[list[bytes]]:
    """The lines that have arrived since the last call, without their ends; a line beyond the limit is cut."""
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    room = threading.Semaphore(CHUNKS_AHEAD)
    # A daemon that reads the descriptor itself: neither Ctrl-C nor the interpreter's end waits for a silent pipe.
    arguments = (descriptor, asyncio.get_running_loop(), chunks, room)
    threading.Thread(target=_pump, args=arguments, name="lines", daemon=True).start()
    begun = b""
    while chunk := await chunks.get():
        if isinstance(chunk, OSError):
            raise chunk
        *whole, begun = (begun + chunk).split(b"\n")
        begun = begun[: LINE_BYTES_MAX + 1]
        if whole:
            yield whole
        room.release()
    if begun:
        yield [begun]


def _pump(
    descriptor: int,
    loop: asyncio.AbstractEventLoop,
    chunks: asyncio.Queue[bytes | OSError],
    room: threading.Semaphore,
) -> None:
    chunk: bytes | OSError = b"begin"
    while chunk and not isinstance(chunk, OSError):
        room.acquire()
        try:
            chunk = os.read(descriptor, CHUNK_BYTES)
        except OSError as error:
            chunk = error
        try:
            loop.call_soon_threadsafe(chunks.put_nowait, chunk)
        except RuntimeError:
            # The loop has ended, and so has the reader of the lines.
            return
