"""Topics of the client's cluster by their names: the broker says whether a topic is a timeline or a log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dejaq.domain.topic import TopicKind
from dejaq.forward.base import Parcel, Sink, Source
from dejaq.forward.log import LogSink, LogSource
from dejaq.forward.topic import TopicSink, TopicSource, TopicTransfer
from dejaq.sdk.client import Client


class NamedSource:
    """Reads a timeline or a log."""

    def __init__(self, client: Client, topic: str, *, name: str, group: str, batch: int) -> None:
        self._client, self._topic = client, topic
        self._name, self._group, self._batch = name, group, batch
        self._source: Source | None = None

    @property
    def source(self) -> Source:
        """The source of the topic's kind; available when this is open."""
        assert self._source is not None, "it is read before it is opened"
        return self._source

    async def open(self) -> None:
        """Ask for the kind of the topic, and subscribe."""
        self._source = (
            LogSource(self._client, self._topic, name=self._name, group=self._group)
            if await _is_log(self._client, self._topic)
            else TopicSource(self._client, self._topic, name=self._name, batch=self._batch)
        )
        await self._source.open()

    async def read(self, limit: int) -> Sequence[Parcel]:
        """The next messages."""
        return await self.source.read(limit)

    async def ack(self, parcels: Sequence[Parcel]) -> None:
        """Acknowledge."""
        await self.source.ack(parcels)

    async def reject(self, parcel: Parcel, reason: str) -> None:
        """Keep a message that the sink refused."""
        await self.source.reject(parcel, reason)

    async def close(self) -> None:
        """Disconnect."""
        if self._source is not None:
            await self._source.close()


class NamedSink:
    """Writes to a timeline or a log."""

    def __init__(self, client: Client, topic: str, *, group: str, delay: float) -> None:
        self._client, self._topic = client, topic
        self._group, self._delay = group, delay
        self._sink: Sink | None = None

    @property
    def sink(self) -> Sink:
        """The sink of the topic's kind; available when this is open."""
        assert self._sink is not None, "it is written to before it is opened"
        return self._sink

    async def open(self) -> None:
        """Ask for the kind of the topic, and connect."""
        self._sink = (
            LogSink(self._client, self._topic)
            if await _is_log(self._client, self._topic)
            else TopicSink(self._client, self._topic, group=self._group, delay=self._delay)
        )
        await self._sink.open()

    async def write(self, parcels: Sequence[Parcel]) -> Mapping[int, str]:
        """Store messages."""
        return await self.sink.write(parcels)

    async def close(self) -> None:
        """Disconnect."""
        if self._sink is not None:
            await self._sink.close()


class NamedTransfer:
    """Moves messages between two timelines of one cluster in a transaction; other pairs are moved in two steps."""

    def __init__(self, source: NamedSource, sink: NamedSink) -> None:
        self._source, self._sink = source, sink
        self._transfer: TopicTransfer | None = None

    async def __call__(self, parcels: Sequence[Parcel]) -> bool:
        """Whether the messages were moved."""
        source, sink = self._source.source, self._sink.sink
        if not isinstance(source, TopicSource) or not isinstance(sink, TopicSink):
            return False
        if self._transfer is None:
            self._transfer = TopicTransfer(sink)
        return await self._transfer(parcels)


async def _is_log(client: Client, topic: str) -> bool:
    return (await client.describe_topic(topic)).settings.kind is TopicKind.LOG
