"""Reads strace's output about a broker: the writes and syncs of the log, and the frames on its sockets.

strace stops a thread at the beginning and at the end of each call until strace has written its line. So the order of
the lines is an order of cause and effect: the line of whatever a thread did after a call comes after the line that ends
that call.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.websocket.framing import FrameReader, Opcode, Payload
from dejaq.protocol.websocket.messages import MESSAGE_BYTES_MAX, Kind, parse

TRACED = "read,recvfrom,sendto,recvmsg,sendmsg,write,writev,pwrite64,fdatasync,fsync"
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_UPGRADE = b"GET /v1 "
_DATA, _PADDED = 0, 0x08
_LINE = re.compile(r"(\d+)\s+(.*)", re.DOTALL)
_RESUMED = re.compile(r"<\.\.\. (\w+) resumed>(.*)", re.DOTALL)
_CALL = re.compile(r"(\w+)\(\d+<((?:\\x[0-9a-f]{2})*)>(.*)\)\s+= (-?\d+)", re.DOTALL)
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


def strace(out: Path) -> list[str] | None:
    """The command prefix that runs a broker under strace; None where strace is not installed."""
    if shutil.which("strace") is None:
        return None
    # With -D the broker remains a direct child of this process, so its process id is known and it can be killed.
    return [
        *("strace", "-D", "-f", "-q", "-v", "-xx", "-y", "-s", "10000000"),
        *("-e", "signal=none", "-e", f"trace={TRACED}", "-o", str(out)),
    ]


@dataclass(frozen=True, slots=True)
class Call:
    """One system call on one file: the lines on which it began and ended, and the bytes that it transferred."""

    name: str
    file: str
    data: bytes
    began: int
    ended: int


def read_calls(trace: Path) -> list[Call]:
    """The successful calls, in the order in which they ended."""
    calls: list[Call] = []
    open_calls: dict[str, tuple[int, str]] = {}
    with trace.open() as lines:
        for number, line in enumerate(lines):
            match = _LINE.match(line.rstrip("\n"))
            if match is None:
                continue
            thread, text = match.groups()
            began = number
            if text.endswith("<unfinished ...>"):
                open_calls[thread] = (number, text.removesuffix("<unfinished ...>"))
                continue
            resumed = _RESUMED.match(text)
            if resumed is not None:
                began, head = open_calls.pop(thread)
                text = head + resumed[2]
            call = _parse(text, began, number)
            if call is not None:
                calls.append(call)
    return calls


def _parse(text: str, began: int, ended: int) -> Call | None:
    match = _CALL.match(text)
    if match is None:
        return None
    name, file, arguments, answer = match.groups()
    if int(answer) < 0:
        return None
    data = b"".join(_unescape(part) for part in _TEXT.findall(arguments))[: int(answer)]
    return Call(name, _unescape(file).decode(errors="replace"), data, began, ended)


def _unescape(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


@dataclass(slots=True)
class _Direction:
    """The bytes of one direction of a connection, split into HTTP/2 frames and then into gRPC messages."""

    pending: bytearray = field(default_factory=bytearray)
    streams: dict[int, bytearray] = field(default_factory=dict)

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The gRPC messages that end in `data`, each with its stream number."""
        self.pending += data
        while len(self.pending) >= 9:
            length = int.from_bytes(self.pending[:3], "big")
            if len(self.pending) < 9 + length:
                return
            kind, flags = self.pending[3], self.pending[4]
            stream = int.from_bytes(self.pending[5:9], "big")
            payload = bytes(self.pending[9 : 9 + length])
            del self.pending[: 9 + length]
            if kind == _DATA:
                assert not flags & _PADDED
                for message in self._messages(stream, payload):
                    yield stream, message

    def _messages(self, stream: int, payload: bytes) -> Iterator[bytes]:
        waiting = self.streams.setdefault(stream, bytearray())
        waiting += payload
        while len(waiting) >= 5:
            length = int.from_bytes(waiting[1:5], "big")
            if len(waiting) < 5 + length:
                return
            yield bytes(waiting[5 : 5 + length])
            del waiting[: 5 + length]


class _WebSocketDirection:
    """The bytes of one direction of a connection, after the end of its HTTP head, split into messages of sessions."""

    def __init__(self, *, masked: bool) -> None:
        self._head: bytes | None = b""
        self._found: list[tuple[int, bytes]] = []
        self._reader = FrameReader(masked=masked, message_bytes_max=MESSAGE_BYTES_MAX, deliver=self._take)

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The messages of sessions that end in `data`, each with its stream number."""
        if self._head is not None:
            head, end, data = (self._head + data).partition(b"\r\n\r\n")
            self._head = None if end else head
        self._reader.read(data)
        found, self._found = self._found, []
        yield from found

    def _take(self, opcode: Opcode, payload: Payload) -> None:
        if opcode is Opcode.BINARY:
            kind, stream, content = parse(bytes(payload))
            if kind is Kind.MESSAGE:
                self._found.append((stream, bytes(content)))


@dataclass(frozen=True, slots=True)
class Ack:
    """An acknowledged create: the bodies of its messages, and the line on which the broker began to send the answer."""

    bodies: list[bytes]
    sent: int


def acks_of_creates(calls: list[Call]) -> list[Ack]:
    """Every answer to a create that has outcomes, found in the bytes on the sockets."""
    incoming: dict[str, _Direction | _WebSocketDirection] = {}
    outgoing: dict[str, _Direction | _WebSocketDirection] = {}
    # The key is (connection, stream, request): sessions may share a connection, and each numbers its requests itself.
    asked: dict[tuple[str, int, int], list[bytes]] = {}
    acks: list[Ack] = []
    for call in calls:
        if call.name in {"read", "recvfrom", "recvmsg"}:
            data = call.data
            if data.startswith(_UPGRADE) and call.file not in incoming:
                incoming[call.file] = _WebSocketDirection(masked=True)
                outgoing[call.file] = _WebSocketDirection(masked=False)
            elif data.startswith(_PREFACE):
                incoming[call.file], outgoing[call.file] = _Direction(), _Direction()
                data = data[len(_PREFACE) :]
            if call.file in incoming:
                for stream, message in incoming[call.file].feed(data):
                    frame = _parsed(carrier.ClientFrame(), message)
                    if frame is not None and frame.HasField("create"):
                        asked[call.file, stream, frame.request] = list(frame.create.bodies)
        elif call.name in {"sendto", "sendmsg", "write", "writev"} and call.file in outgoing:
            for stream, message in outgoing[call.file].feed(call.data):
                answer = _parsed(carrier.BrokerFrame(), message)
                if answer is not None and answer.HasField("outcomes"):
                    bodies = asked.pop((call.file, stream, answer.request), None)
                    if bodies is not None:
                        acks.append(Ack(bodies, call.began))
    return acks


def _parsed(frame: carrier.ClientFrame, message: bytes) -> carrier.ClientFrame | None:
    try:
        frame.ParseFromString(message)
    except Exception:
        # Messages of other calls use the same connection.
        return None
    return frame


def unsynced(calls: list[Call], acks: list[Ack], marker: re.Pattern[bytes]) -> list[str]:
    """Each marker that was acknowledged before the end of a sync that had begun after the marker's write to the log."""
    written: dict[bytes, list[Call]] = {}
    syncs: dict[str, list[Call]] = {}
    for call in calls:
        if call.name in {"fdatasync", "fsync"}:
            syncs.setdefault(call.file, []).append(call)
        elif call.name in {"write", "writev", "pwrite64"} and call.file.endswith(".log"):
            for found in marker.findall(call.data):
                written.setdefault(found, []).append(call)
    faults: list[str] = []
    for ack in acks:
        for name in {found for body in ack.bodies for found in marker.findall(body)}:
            covered = any(
                write.ended < sync.began and sync.ended < ack.sent
                for write in written.get(name, [])[:1]
                for sync in syncs.get(write.file, [])
            )
            if not covered:
                faults.append(f"{name.decode()}: acknowledged on line {ack.sent} without a sync of its write before")
    return faults
