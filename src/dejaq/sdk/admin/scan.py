"""A scan of a topic at one instant: the ids, versions and times of the matching messages, in no order."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from dejaq.domain.ids import generated_ids
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.sdk.session.seeds import Seeds
from dejaq.sdk.session.settings import ClientSettings


@dataclass(slots=True)
class Found:
    """Some messages as columns."""

    ids: list[str] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    ts: list[int] = field(default_factory=list)

    def add(self, columns: carrier.ScanColumns) -> None:
        """Add a portion of the scan."""
        listed = iter(columns.ids)
        for stretch in columns.stretches:
            span = stretch.span
            if span.prefix:
                self.ids += generated_ids(span.prefix, span.first, span.count)
            else:
                self.ids += [next(listed) for _ in range(span.count)]
            self.versions += [stretch.version] * span.count
        self.ts.extend(columns.ts)

    def take(self, count: int) -> Found:
        """Remove the first `count` messages and return them."""
        taken = Found(self.ids[:count], self.versions[:count], self.ts[:count])
        del self.ids[:count], self.versions[:count], self.ts[:count]
        return taken


async def scan(
    seeds: Seeds, settings: ClientSettings, topic: str, where: carrier.Filter, *, rows: int
) -> AsyncGenerator[Found, None]:
    """The messages that matched when the scan began, at most `rows` at a time; later changes do not show."""
    transport = seeds.first()
    opened = await transport.call(
        "Carrier.OpenSnapshot", carrier.SnapshotRequest(topic=topic), carrier.SnapshotResponse, settings.timeout
    )
    request = carrier.ScanRequest(
        snapshot=opened.snapshot, first_bucket=0, end_bucket=opened.buckets, filter=where, without_bodies=True
    )
    found = Found()
    try:
        async for columns in transport.stream("Carrier.Scan", request, carrier.ScanColumns):
            found.add(columns)
            while len(found.ids) >= rows:
                yield found.take(rows)
        if found.ids:
            yield found
    finally:
        closing = carrier.CloseSnapshotRequest(snapshot=opened.snapshot)
        await transport.call("Carrier.CloseSnapshot", closing, carrier.CloseSnapshotResponse, settings.timeout)
