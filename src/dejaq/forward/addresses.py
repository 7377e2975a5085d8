"""The addresses of sources and sinks, as a user writes them.

orders                              a timeline or a log of the cluster that the client is connected to
redis://host:port/[DB/]STREAM       a Redis stream (needs the extra `forward`)
kafka://host:port[,...]/TOPIC       a Kafka topic (needs the extra `forward`)
"""

from __future__ import annotations

import socket
from importlib import import_module
from types import ModuleType
from urllib.parse import urlsplit

from dejaq.domain.naming.topic_name import check_asked_topic
from dejaq.errors import Code, error_of
from dejaq.forward.base import Sink, Source
from dejaq.forward.forwarder import BATCH, Forwarder
from dejaq.forward.named import NamedSink, NamedSource, NamedTransfer
from dejaq.sdk.client import Client

FORMS = "give a topic, redis://HOST:PORT/STREAM, or kafka://HOST:PORT/TOPIC"


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
    writes = _sink(client, sink, name=name, group=group, delay=delay) if isinstance(sink, str) else sink
    transfer = None
    if isinstance(reads, NamedSource) and isinstance(writes, NamedSink):
        transfer = NamedTransfer(client, reads, writes)
    return Forwarder(reads, writes, batch=batch, transfer=transfer)


async def forward(client: Client, source: str | Source, sink: str | Sink, **options: object) -> None:
    """Forward until cancelled; the options are those of `forwarder`."""
    await forwarder(client, source, sink, **options).run()  # type: ignore[arg-type]


def _source(client: Client, address: str, *, name: str, target: str, batch: int, trim: bool) -> Source:
    group = _group_to(target)
    source: Source
    match _scheme(address):
        case "redis":
            source = _module("redis").StreamSource(address, name=name, group=group, trim=trim)
        case "kafka":
            source = _module("kafka").KafkaSource(address, name=name, group=group)
        case _:
            source = NamedSource(client, address, name=name, group=group, batch=batch)
    return source


def _sink(client: Client, address: str, *, name: str, group: str, delay: float) -> Sink:
    sink: Sink
    match _scheme(address):
        case "redis":
            sink = _module("redis").StreamSink(address)
        case "kafka":
            sink = _module("kafka").KafkaSink(address, name=name)
        case _:
            sink = NamedSink(client, address, group=group, delay=delay)
    return sink


def _group_to(target: str) -> str:
    """The group of all forwarders from one stream to one target, so that each target is given the whole stream."""
    if "://" not in target:
        return f"dejaq-forward-to-{target}"
    parts = urlsplit(target)
    if parts.scheme == "kafka":
        return f"dejaq-forward-to-kafka:{parts.path.strip('/')}"
    return f"dejaq-forward-to-{parts.hostname}:{parts.port or 6379}{parts.path}"


def _scheme(address: str) -> str:
    scheme, mark, _ = address.partition("://")
    if not mark:
        check_asked_topic(address)
        return ""
    if scheme in ("redis", "rediss"):
        return "redis"
    if scheme == "kafka":
        return scheme
    raise error_of(Code.INVALID_ARGUMENT, f"{scheme!r} is no kind of queue that can be forwarded; {FORMS}")


def _module(name: str) -> ModuleType:
    try:
        return import_module(f"dejaq.forward.{name}")
    except ModuleNotFoundError as missing:
        raise error_of(
            Code.INVALID_ARGUMENT,
            f"{name.capitalize()} needs the extra: pip install 'dejaq-mq[forward]' ({missing})",
        ) from None
