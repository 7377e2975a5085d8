"""Redis streams as source and sink.

An entry is a message when it has a field `body`. `id`, `at` (UTC ms) and `priority` are what they are in DejaQ, and
`header:NAME` is a header, as is every other field. An entry without a body becomes a JSON object of its fields.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import redis.asyncio as client
from redis import exceptions

from dejaq import limits
from dejaq.domain.ids import valid_id
from dejaq.errors import Code, Unavailable, error_of
from dejaq.forward.base import Parcel, headers_with_key

# The group of release 0.1.0, which forwarders to all targets shared.
GROUP = "dejaq-forward"
BLOCK_MS = 1_000
SILENT_SECONDS = 10.0
# Entries that another forwarder of the group has not acknowledged for this long are taken over.
CLAIM_IDLE_MS = 30_000
# How long a sink recognises a repeat.
REMEMBER_SECONDS = 7 * 24 * 3_600
_HEADER = "header:"

# KEYS: the stream, then a mark for each message. ARGV: how long marks stay; then, for each message, the number of its
# fields and the fields.
_WRITE = """
local place, written = 2, 0
for i = 2, #KEYS do
  local count = tonumber(ARGV[place])
  if redis.call('SET', KEYS[i], '1', 'NX', 'EX', ARGV[1]) then
    redis.call('XADD', KEYS[1], '*', unpack(ARGV, place + 1, place + count))
    written = written + 1
  end
  place = place + count + 1
end
return written
"""


class _Stream:
    """A connection to one stream, `redis://[user:password@]host:port/[DB/]STREAM`."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        database, _, name = parts.path.strip("/").rpartition("/")
        if not name or not parts.hostname or not (database.isdigit() or not database):
            raise error_of(Code.INVALID_ARGUMENT, f"{_shown(url)!r} is not redis://HOST:PORT/STREAM")
        self.stream = name
        self.where = f"{parts.hostname}:{parts.port or 6379}"
        self.redis = client.Redis.from_url(
            urlunsplit((parts.scheme, parts.netloc, f"/{database or 0}", "", "")),
            # A server that is silent, and not gone, must not be waited for without end.
            socket_timeout=SILENT_SECONDS,
            socket_connect_timeout=SILENT_SECONDS,
        )

    @asynccontextmanager
    async def telling(self) -> AsyncIterator[None]:
        """Convert errors of Redis to errors of DejaQ."""
        try:
            yield
        except (exceptions.AuthenticationError, exceptions.NoPermissionError) as error:
            raise error_of(Code.INVALID_ARGUMENT, f"Redis at {self.where} refuses access: {error}") from None
        except (exceptions.ConnectionError, exceptions.TimeoutError, exceptions.ReadOnlyError, OSError) as error:
            raise Unavailable(f"Redis at {self.where} does not serve: {error}") from None
        except exceptions.ResponseError as error:
            raise error_of(Code.INVALID_ARGUMENT, f"Redis at {self.where}, stream {self.stream!r}: {error}") from None

    async def close(self) -> None:
        """Disconnect."""
        await self.redis.aclose()


class StreamSource(_Stream):
    """A consumer in a group of a stream; a consumer that returns with its name receives again what it had not
    acknowledged.
    """

    def __init__(self, url: str, *, name: str, group: str = GROUP, trim: bool = False) -> None:
        super().__init__(url)
        self._name = name
        self._group = group
        self._trim = trim
        # The entry after which pending ones must still be read again; None when all have been.
        self._pending: bytes | str | None = "0"
        self._mark = f"redis:{zlib.crc32(self.stream.encode()):08x}:"
        self._claimed = b"0-0"

    async def open(self) -> None:
        """Make the group if it is not there; it begins where that of 0.1.0 was, or with the oldest entry."""
        async with self.telling():
            try:
                await self.redis.xgroup_create(self.stream, self._group, id=await self._beginning(), mkstream=True)
            except exceptions.ResponseError as error:
                if not str(error).startswith("BUSYGROUP"):
                    raise

    async def _beginning(self) -> str:
        if self._group == GROUP or not await self.redis.exists(self.stream):
            return "0"
        groups = {group["name"].decode(): group for group in await self.redis.xinfo_groups(self.stream)}
        if GROUP not in groups:
            return "0"
        waiting = await self.redis.xpending(self.stream, GROUP)
        if waiting["pending"]:
            # What was read and not acknowledged is read again; the sink knows what it has.
            milliseconds, _, number = waiting["min"].decode().partition("-")
            return f"{milliseconds}-{int(number) - 1}" if int(number) else f"{int(milliseconds) - 1}-{2**64 - 1}"
        last: str = groups[GROUP]["last-delivered-id"].decode()
        return last

    async def read(self, limit: int) -> Sequence[Parcel]:
        """First entries that this name had not acknowledged, then entries that others left behind, then new ones."""
        while True:
            try:
                async with self.telling():
                    entries = await self._entries(limit)
            except Unavailable:
                # What Redis gave in an answer that never came is pending now.
                self._pending = "0"
                raise
            if entries:
                return [self._parcel(entry.decode(), fields) for entry, fields in entries]

    async def _entries(self, limit: int) -> Sequence[tuple[bytes, dict[bytes, bytes] | None]]:
        if self._pending is not None:
            answer = await self.redis.xreadgroup(self._group, self._name, {self.stream: self._pending}, count=limit)
            entries = _of_one_stream(answer)
            self._pending = entries[-1][0] if entries else None
            return await self._without_gone(entries)
        self._claimed, entries, *_ = await self.redis.xautoclaim(
            self.stream, self._group, self._name, CLAIM_IDLE_MS, start_id=self._claimed, count=limit
        )
        if entries:
            return await self._without_gone(entries)
        answer = await self.redis.xreadgroup(self._group, self._name, {self.stream: ">"}, count=limit, block=BLOCK_MS)
        return _of_one_stream(answer)

    async def _without_gone(
        self, entries: Sequence[tuple[bytes, dict[bytes, bytes] | None]]
    ) -> Sequence[tuple[bytes, dict[bytes, bytes] | None]]:
        """Entries that were deleted from the stream after they were read have nothing to forward."""
        gone = [entry for entry, fields in entries if not fields]
        if gone:
            await self.redis.xack(self.stream, self._group, *gone)
        return [pair for pair in entries if pair[1]]

    def _parcel(self, entry: str, fields: Mapping[bytes, bytes] | None) -> Parcel:
        values = {name.decode(errors="replace"): value for name, value in (fields or {}).items()}
        body = values.pop("body", None)
        # When it was added, by Redis's clock: a repeat has the same time and is recognised by it.
        added = int(entry.partition("-")[0])
        if body is None:
            plain = {name: value.decode(errors="replace") for name, value in values.items()}
            return Parcel(id=self._mark + entry, body=json.dumps(plain).encode(), ts=added, token=entry)
        own = values.pop("id", b"").decode(errors="replace")
        at, priority = _number(values.pop("at", None)), _number(values.pop("priority", None))
        headers = {name.removeprefix(_HEADER): value.decode(errors="replace") for name, value in values.items()}
        return Parcel(
            id=own if valid_id(own) else self._mark + entry,
            body=body,
            ts=at if at is not None and 0 <= at <= limits.TS_MS_MAX else min(added, limits.TS_MS_MAX),
            priority=priority or 0,
            headers=headers,
            token=entry,
        )

    async def ack(self, parcels: Sequence[Parcel]) -> None:
        """Acknowledge them in the group, and delete them if configured."""
        entries = [parcel.token for parcel in parcels]
        async with self.telling():
            await self.redis.xack(self.stream, self._group, *entries)
            if self._trim:
                await self.redis.xdel(self.stream, *entries)

    async def reject(self, parcel: Parcel, reason: str) -> None:
        """It remains pending in the group, where XPENDING shows it, and is read again at the next start."""


class StreamSink(_Stream):
    """Adds to a stream, each message once: its id is remembered beside the stream in the same atomic step."""

    async def open(self) -> None:
        """Check that Redis answers and that the name is not used for another type."""
        async with self.telling():
            kind: Any = await self.redis.type(self.stream)
            if kind not in (b"none", b"stream"):
                raise error_of(
                    Code.INVALID_ARGUMENT, f"{self.stream!r} at {self.where} is no stream but a {kind.decode()}"
                )

    async def write(self, parcels: Sequence[Parcel]) -> Mapping[int, str]:
        """Add those that are not there yet."""
        keys = [self.stream, *(f"{self.stream}:dejaq:{parcel.id}" for parcel in parcels)]
        values: list[Any] = [REMEMBER_SECONDS]
        for parcel in parcels:
            fields: list[Any] = ["id", parcel.id, "body", parcel.body]
            if parcel.ts is not None:
                fields += ["at", parcel.ts]
            if parcel.priority:
                fields += ["priority", parcel.priority]
            for name, value in headers_with_key(parcel).items():
                fields += [_HEADER + name, value]
            values += [len(fields), *fields]
        async with self.telling():
            await self.redis.eval(_WRITE, len(keys), *keys, *values)
        return {}


def _of_one_stream(answer: Any) -> list[tuple[bytes, dict[bytes, bytes] | None]]:
    if isinstance(answer, dict):
        # The newer protocol of Redis answers with a map, and nests the entries once more.
        return [entry for lists in answer.values() for entries in lists for entry in entries]
    return [entry for _, entries in answer or () for entry in entries]


def _number(value: bytes | None) -> int | None:
    try:
        return None if value is None else int(value)
    except ValueError:
        return None


def _shown(url: str) -> str:
    """An address without a password in it."""
    parts = urlsplit(url)
    return url if parts.password is None else url.replace(f":{parts.password}@", ":***@")
