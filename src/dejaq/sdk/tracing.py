"""OpenTelemetry traces of a client: sending, leasing and settling as spans that are linked over the queue.

    from dejaq.sdk.tracing import trace

    client = trace(dejaq.connect("dejaq://127.0.0.1:7400"))

A send writes its context into the header `traceparent` of the message. A lease is a span that links to the send, and
settling is one that links to both: a message waits for hours or years, so one trace over its life would never end.
Clients that are not traced run none of this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry import trace as otel
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Tracer, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from dejaq.errors import DejaqError
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.version import package_version
from dejaq.sdk.client import Client
from dejaq.sdk.consuming.consumer import Consumer
from dejaq.sdk.consuming.lease import Batch, Lease
from dejaq.sdk.producing.producer import Producer
from dejaq.sdk.results import Results

# A span of a batch links to so many messages; the others are counted only.
LINKS_MAX = 128
HEADER = "traceparent"
SENDS, LEASES, SETTLES = SpanKind.PRODUCER, SpanKind.CONSUMER, SpanKind.CLIENT
_propagator = TraceContextTextMapPropagator()
_VERBS = {carrier.DELETE: "delete", carrier.RELEASE: "release", carrier.EXTEND: "extend", carrier.REJECT: "reject"}
Headers = Mapping[str, str]


def trace(client: Client, provider: TracerProvider | None = None) -> Client:
    """Trace the producers and consumers that this client makes from now on; by default with the global provider."""
    tracer = (provider or otel.get_tracer_provider()).get_tracer("dejaq", package_version())
    client._producer_class = type("TracedProducer", (TracedProducer,), {"tracer": tracer})
    client._consumer_class = type("TracedConsumer", (TracedConsumer,), {"tracer": tracer})
    return client


def context_of(lease: Lease) -> Context:
    """The context of the lease, as the parent of spans that process the message."""
    span = getattr(lease, "_context", None)
    return otel.set_span_in_context(otel.NonRecordingSpan(span)) if span is not None else Context()


def _attributes(topic: str, operation: str, kind: str) -> dict[str, Any]:
    return {
        "messaging.system": "dejaq",
        "messaging.destination.name": topic,
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
    }


@contextmanager
def _failing(span: Span) -> Iterator[None]:
    """Note the code of an error; the span records the error itself."""
    try:
        yield
    except DejaqError as error:
        span.set_attribute("error.type", error.code.name)
        raise


def _with_context(headers: Headers | None) -> dict[str, str]:
    found = dict(headers or {})
    _propagator.inject(found)
    return found


def _sender_of(headers: Headers) -> SpanContext | None:
    if HEADER not in headers:
        return None
    found = otel.get_current_span(_propagator.extract(headers, Context())).get_span_context()
    return found if found.is_valid else None


def _links(contexts: Sequence[SpanContext | None]) -> list[Link]:
    return [Link(context) for context in contexts[:LINKS_MAX] if context is not None]


class TracedProducer(Producer):
    """A producer whose sends are spans."""

    tracer: Tracer

    async def send(self, body: bytes, **options: Any) -> str:
        """Send one message in a span."""
        attributes = _attributes(self.topic, "send", "send")
        with self.tracer.start_as_current_span(f"send {self.topic}", kind=SENDS, attributes=attributes) as span:
            options["headers"] = _with_context(options.get("headers"))
            with _failing(span):
                message_id = await super().send(body, **options)
            span.set_attribute("messaging.message.id", message_id)
            return message_id

    async def send_batch(self, bodies: Sequence[bytes], **options: Any) -> Results:
        """Send many messages in one span."""
        attributes = _attributes(self.topic, "send", "send") | {"messaging.batch.message_count": len(bodies)}
        with self.tracer.start_as_current_span(f"send {self.topic}", kind=SENDS, attributes=attributes) as span:
            headers = options.get("headers")
            if headers is None or isinstance(headers, Mapping):
                options["headers"] = _with_context(headers)
            else:
                options["headers"] = [_with_context(one) for one in headers]
            with _failing(span):
                return await super().send_batch(bodies, **options)


class TracedLease(Lease):
    """A lease that is a span, and whose end is one."""

    __slots__ = ("_context", "_sender", "_tracer")

    def __init__(self, lease: Lease, tracer: Tracer) -> None:
        self._tracer = tracer
        self._adopt(lease)
        self._sender = _sender_of(lease.headers)
        attributes = _attributes(lease.topic, "lease", "receive") | {
            "messaging.message.id": lease.id,
            "dejaq.attempts": lease.attempts,
            "dejaq.lateness_ms": max(0, self._clock.now_ms() - lease.ts),
        }
        span = tracer.start_span(
            f"lease {lease.topic}", kind=LEASES, attributes=attributes, links=_links([self._sender])
        )
        span.end()
        self._context = span.get_span_context()

    async def _settle(self, settlement: Any) -> None:
        verb = _VERBS.get(settlement.kind, "settle")
        attributes = _attributes(self.topic, verb, "settle") | {"messaging.message.id": self.id}
        links = _links([self._context, self._sender])
        with (
            self._tracer.start_as_current_span(
                f"{verb} {self.topic}", kind=SETTLES, attributes=attributes, links=links
            ) as span,
            _failing(span),
        ):
            await super()._settle(settlement)


class TracedBatch(Batch):
    """A batch that is a span, and whose end is one."""

    __slots__ = ("_context", "_senders", "_topic", "_tracer")

    def __init__(self, batch: Batch, tracer: Tracer) -> None:
        self._tracer = tracer
        super().__init__(batch._portions, batch._settler, batch._clock)
        leases = [batch[place] for place in range(min(len(batch), LINKS_MAX))]
        self._topic = leases[0].topic if leases else ""
        self._senders = [_sender_of(lease.headers) for lease in leases]
        attributes = _attributes(self._topic, "lease", "receive") | {"messaging.batch.message_count": len(batch)}
        span = tracer.start_span(
            f"lease {self._topic}", kind=LEASES, attributes=attributes, links=_links(self._senders)
        )
        span.end()
        self._context = span.get_span_context()

    async def _settle(self, settlement: Any, positions: Sequence[int] | None, *, raises: bool) -> Results:
        verb = _VERBS.get(settlement.kind, "settle")
        count = len(self) if positions is None else len(positions)
        attributes = _attributes(self._topic, verb, "settle") | {"messaging.batch.message_count": count}
        links = _links([self._context, *self._senders])
        with (
            self._tracer.start_as_current_span(
                f"{verb} {self._topic}", kind=SETTLES, attributes=attributes, links=links
            ) as span,
            _failing(span),
        ):
            return await super()._settle(settlement, positions, raises=raises)


class TracedConsumer(Consumer):
    """A consumer whose leases are spans."""

    tracer: Tracer

    async def __anext__(self) -> Lease:
        return TracedLease(await super().__anext__(), self.tracer)

    async def take(self, size: int = 100, *, timeout: float | None = None) -> Batch:
        """The next batch, as a span."""
        return TracedBatch(await super().take(size, timeout=timeout), self.tracer)
