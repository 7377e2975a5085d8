"""Topics of the client's cluster by their names: the broker says whether a topic is a timeline or a log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dejaq.domain.topic import TopicKind
from dejaq.forward.base import Parcel
from dejaq.forward.log import LogSink, LogSource
from dejaq.forward.topic import TopicSink, TopicSource, TopicTransfer
from dejaq.forward.transfer import LogTransfer
from dejaq.sdk.client import Client


class NamedSource:
    """Reads a timeline or a log."""

    def __init__(self, client: Client, topic: str, *, name: str, group: str, batch: int) -> None:
        self._client, self._topic = client, topic
        self._name, self._group, self._batch = name, group, batch
        self._source: TopicSource | LogSource | None = None

    @property
    def source(self) -> TopicSource | LogSource:
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
        self._sink: TopicSink | LogSink | None = None

    @property
    def sink(self) -> TopicSink | LogSink:
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
    """Moves messages between two topics of one cluster in transactions."""

    def __init__(self, client: Client, source: NamedSource, sink: NamedSink) -> None:
        self._client, self._source, self._sink = client, source, sink
        self._transfer: TopicTransfer | LogTransfer | None = None

    async def __call__(self, parcels: Sequence[Parcel]) -> Mapping[int, str] | None:
        """Move messages; None if they must be moved in two steps."""
        if self._transfer is None:
            source, sink = self._source.source, self._sink.sink
            if isinstance(source, TopicSource) and isinstance(sink, TopicSink):
                self._transfer = TopicTransfer(sink)
            else:
                self._transfer = LogTransfer(self._client, source, sink)
        return await self._transfer(parcels)


async def _is_log(client: Client, topic: str) -> bool:
    return (await client.describe_topic(topic)).settings.kind is TopicKind.LOG
