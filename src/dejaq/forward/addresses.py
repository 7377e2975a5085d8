"""The addresses of sources and sinks, as a user writes them.

orders                              a topic of the cluster that the client is connected to
redis://host:port/[DB/]STREAM       a Redis stream (needs the extra `forward`)
"""

from __future__ import annotations

import socket
from types import ModuleType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from dejaq.domain.naming.topic_name import check_asked_topic
from dejaq.errors import Code, error_of
from dejaq.forward.base import Sink, Source
from dejaq.forward.forwarder import BATCH, Forwarder
from dejaq.forward.topic import TopicSink, TopicSource, TopicTransfer
from dejaq.sdk.client import Client

if TYPE_CHECKING:
    from dejaq.forward.redis import StreamSink, StreamSource

FORMS = "give a topic, or redis://HOST:PORT/STREAM"


def forwarder(
    client: Client,
    source: str | Source,
    sink: str | Sink,
    *,
    name: str = "",
    group: str = "forward",
    batch: int = BATCH,
    delay: float = 0.0,
    trim: bool = False,
) -> Forwarder:
    """A forwarder between two addresses, or connectors of your own.

    `name` identifies the forwarder at its source: a forwarder that returns with it receives again what it had not
    acknowledged. `group` owns the messages created in a topic. `delay` is added to the time of each message there.
    `trim` deletes moved entries from a stream.
    """
    if not 1 <= batch <= 5_000:
        raise error_of(Code.INVALID_ARGUMENT, f"batch={batch} is not 1 to 5000")
    if isinstance(source, str) and source == sink:
        raise error_of(Code.INVALID_ARGUMENT, f"{source!r} would be forwarded to itself")
    name = name or f"forward-{socket.gethostname()}"[:64]
    target = sink if isinstance(sink, str) else f"{type(sink).__module__}.{type(sink).__qualname__}"
    reads = (
        _source(client, source, name=name, target=target, batch=batch, trim=trim) if isinstance(source, str) else source
    )
    writes = _sink(client, sink, group=group, delay=delay) if isinstance(sink, str) else sink
    transfer = TopicTransfer(writes) if isinstance(reads, TopicSource) and isinstance(writes, TopicSink) else None
    return Forwarder(reads, writes, batch=batch, transfer=transfer)


async def forward(client: Client, source: str | Source, sink: str | Sink, **options: object) -> None:
    """Forward until cancelled; the options are those of `forwarder`."""
    await forwarder(client, source, sink, **options).run()  # type: ignore[arg-type]


def _source(
    client: Client, address: str, *, name: str, target: str, batch: int, trim: bool
) -> TopicSource | StreamSource:
    if _scheme(address) == "redis":
        streams: StreamSource = _redis().StreamSource(address, name=name, group=_group_to(target), trim=trim)
        return streams
    return TopicSource(client, address, name=name, batch=batch)


def _sink(client: Client, address: str, *, group: str, delay: float) -> TopicSink | StreamSink:
    if _scheme(address) == "redis":
        stream: StreamSink = _redis().StreamSink(address)
        return stream
    return TopicSink(client, address, group=group, delay=delay)


def _group_to(target: str) -> str:
    """The group of all forwarders from one stream to one target, so that each target is given the whole stream."""
    if "://" not in target:
        return f"dejaq-forward-to-{target}"
    parts = urlsplit(target)
    return f"dejaq-forward-to-{parts.hostname}:{parts.port or 6379}{parts.path}"


def _scheme(address: str) -> str:
    scheme, mark, _ = address.partition("://")
    if not mark:
        check_asked_topic(address)
        return ""
    if scheme in ("redis", "rediss"):
        return "redis"
    raise error_of(Code.INVALID_ARGUMENT, f"{scheme!r} is no kind of queue that can be forwarded; {FORMS}")


def _redis() -> ModuleType:
    try:
        from dejaq.forward import redis
    except ModuleNotFoundError as missing:
        raise error_of(
            Code.INVALID_ARGUMENT, f"Redis needs the extra: pip install 'dejaq-mq[forward]' ({missing})"
        ) from None
    return redis
