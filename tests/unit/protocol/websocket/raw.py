"""A WebSocket client that knows no rules: it sends any bytes, and reads what comes."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dejaq.protocol.websocket.framing import Opcode, unmask
from dejaq.protocol.websocket.handshake import END, new_key, request_head
from dejaq.testing.waiting import patient

SECONDS = 10.0
KEY = b"\x11\x22\x33\x44"


def frame(
    payload: bytes, opcode: int = Opcode.BINARY, *, end: bool = True, masked: bool = True, first: int = 0
) -> bytes:
    """A frame of a client; `first` sets further bits of its first byte."""
    size = len(payload)
    bit = 0x80 if masked else 0
    if size < 126:
        head = struct.pack("!BB", (0x80 if end else 0) | first | opcode, bit | size)
    elif size < 0x10000:
        head = struct.pack("!BBH", (0x80 if end else 0) | first | opcode, bit | 126, size)
    else:
        head = struct.pack("!BBQ", (0x80 if end else 0) | first | opcode, bit | 127, size)
    return head + KEY + unmask(payload, KEY) if masked else head + payload


class RawSocket:
    """A connection to a broker's port."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    @asynccontextmanager
    async def to(cls, address: str, *, limit: int = 2**16) -> AsyncIterator[RawSocket]:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=limit)
        try:
            yield cls(reader, writer)
        finally:
            writer.transport.abort()

    @classmethod
    @asynccontextmanager
    async def open(cls, address: str) -> AsyncIterator[RawSocket]:
        """A connection whose handshake is done."""
        async with cls.to(address) as raw:
            await raw.send(request_head(address, new_key()))
            head = await raw.head()
            assert head.startswith("HTTP/1.1 101 "), head
            yield raw

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> str:
        async with asyncio.timeout(patient(SECONDS)):
            return (await self.reader.readuntil(END)).decode()

    async def rest(self) -> bytes:
        """What comes until the broker closes the connection."""
        async with asyncio.timeout(patient(SECONDS)):
            try:
                return await self.reader.read()
            except ConnectionResetError:
                return b""

    async def ask(self, request: str) -> tuple[int, str, str]:
        """The status, head and body of the answer to an HTTP request, written with line feeds."""
        await self.send(request.replace("\n", "\r\n").encode() + END)
        head = await self.head()
        return int(head.split(" ")[1]), head, (await self.rest()).decode()

    async def next_frame(self) -> tuple[int, bytes]:
        """The opcode and payload of the next frame."""
        async with asyncio.timeout(patient(SECONDS)):
            first, second = await self.reader.readexactly(2)
            size = second & 0x7F
            if size == 126:
                size = int.from_bytes(await self.reader.readexactly(2), "big")
            elif size == 127:
                size = int.from_bytes(await self.reader.readexactly(8), "big")
            return first & 0x0F, await self.reader.readexactly(size)

    async def message(self) -> bytes:
        """The payload of the next binary message; pings between are not answered."""
        while True:
            opcode, payload = await self.next_frame()
            if opcode == Opcode.BINARY:
                return payload
            assert opcode == Opcode.PING, (opcode, payload)

    async def closed_with(self) -> tuple[int, str]:
        """The code and reason with which the broker closes the connection."""
        while True:
            opcode, payload = await self.next_frame()
            if opcode == Opcode.CLOSE:
                return int.from_bytes(payload[:2], "big"), payload[2:].decode()
