"""Reads the metrics page of a broker, and the series of it that the pages show."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from dejaq.config import split_address
from dejaq.errors import Unauthenticated, Unavailable
from dejaq.protocol.websocket.connecting import UNIX
from dejaq.security.client import ClientSecurity

SECONDS = 5.0
BYTES_MAX = 8 * 1024 * 1024
# The upper bounds of the broker's histogram of lateness, in milliseconds; what is above the last one is counted last.
BOUNDS_MS = (0, 1, 2, 5, 10, 20, 50, 100, 250, 1_000, 5_000, 60_000)
_BOUND_OF = {float(bound) / 1_000: place for place, bound in enumerate(BOUNDS_MS)} | {float("inf"): len(BOUNDS_MS)}
# What is counted of each message that it happens to.
EVENTS = (
    *("created", "leased", "deleted", "edited", "cancelled"),
    *("released", "expired", "dead_lettered", "redriven", "discarded"),
)
_LINE = re.compile(
    rf'dejaq_(?:messages_(?P<count>{"|".join(EVENTS)})_total\{{topic="(?P<topic>[^"]*)"(?:,[^}}]*)?\}}'
    r'|push_lateness_seconds_bucket\{le="(?P<le>[^"]*)",topic="(?P<late>[^"]*)"\}) (?P<value>\S+)'
)


@dataclass(slots=True)
class TopicCounters:
    """What a broker has counted of one topic since it started, by event. `late` counts each bucket by itself."""

    events: dict[str, float] = field(default_factory=dict)
    late: list[float] = field(default_factory=lambda: [0.0] * (len(BOUNDS_MS) + 1))

    def since(self, before: TopicCounters | None) -> TopicCounters:
        """What was counted after `before`; everything when the broker has been started again meanwhile."""
        if before is None or any(self.events.get(name, 0) < count for name, count in before.events.items()):
            return self
        return TopicCounters(
            {name: count - before.events.get(name, 0) for name, count in self.events.items()},
            [max(0.0, now - then) for now, then in zip(self.late, before.late, strict=True)],
        )

    def add(self, other: TopicCounters) -> None:
        """Add what was counted elsewhere, or at another time."""
        for name, count in other.events.items():
            self.events[name] = self.events.get(name, 0) + count
        for place, value in enumerate(other.late):
            self.late[place] += value

    @property
    def is_quiet(self) -> bool:
        """Whether nothing was counted."""
        return not (any(self.events.values()) or any(self.late))


def parse(lines: Iterable[str]) -> dict[str, TopicCounters]:
    """The counters of each topic in a metrics page."""
    found: dict[str, TopicCounters] = {}
    for line in lines:
        match = _LINE.match(line)
        if match is None:
            continue
        value = float(match["value"])
        if match["count"]:
            events = found.setdefault(match["topic"], TopicCounters()).events
            events[match["count"]] = events.get(match["count"], 0) + value
        elif (place := _BOUND_OF.get(float(match["le"]))) is not None:
            found.setdefault(match["late"], TopicCounters()).late[place] = value
    for counters in found.values():
        # The page has cumulative counts.
        late = counters.late
        counters.late = [now - before for now, before in zip(late, [0.0, *late[:-1]], strict=True)]
    return found


async def scrape(address: str, security: ClientSecurity) -> dict[str, TopicCounters]:
    """The counters of the broker at `address`; raises UNAVAILABLE or UNAUTHENTICATED."""
    bearer = await security.bearer(address)
    try:
        async with asyncio.timeout(SECONDS):
            head, page = await _get(address, security, security.headers(bearer))
    except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
        raise Unavailable(f"the metrics of {address} cannot be read: {str(error) or 'no answer in time'}") from None
    status = head.split(b" ", 2)[1] if head.count(b" ") > 1 else b""
    if status in (b"401", b"403"):
        raise Unauthenticated(f"the broker at {address} does not show its metrics to the gateway")
    if status != b"200":
        raise Unavailable(f"the broker at {address} has no metrics page at its address")
    return parse(page.decode("utf-8", "replace").splitlines())


async def _get(address: str, security: ClientSecurity, headers: dict[str, str]) -> tuple[bytes, bytes]:
    context = security.tls.context() if security.tls is not None else None
    if address.startswith(UNIX):
        reader, writer = await asyncio.open_unix_connection(address.removeprefix(UNIX))
        host = "localhost"
    else:
        host, port = split_address(address)
        reader, writer = await asyncio.open_connection(host, port, ssl=context)
        host = f"[{host}]" if ":" in host else host
    try:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        writer.write(f"GET /metrics HTTP/1.1\r\nHost: {host}\r\n{lines}Connection: close\r\n\r\n".encode())
        data = b""
        while chunk := await reader.read(65_536):
            data += chunk
            if len(data) > BYTES_MAX:
                raise OSError(f"the page has more than {BYTES_MAX} bytes")
    finally:
        writer.close()
    head, _, page = data.partition(b"\r\n\r\n")
    return head, page
