"""Traces: a send, a lease and its end are linked spans; a collector gets them; untraced clients run none of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import dejaq
from dejaq.errors import DejaqError
from dejaq.sdk import tracing
from dejaq.sdk.consuming.consumer import Consumer
from dejaq.sdk.producing.producer import Producer


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(spans: InMemorySpanExporter) -> Iterator[TracerProvider]:
    made = TracerProvider()
    made.add_span_processor(SimpleSpanProcessor(spans))
    yield made
    made.shutdown()


@pytest.fixture
async def client(provider: TracerProvider) -> AsyncIterator[dejaq.Client]:
    async with dejaq.Broker() as broker, tracing.trace(dejaq.connect(broker), provider) as client:
        await client.create_topic("mail")
        yield client


def named(spans: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in spans.get_finished_spans()}


def linked(span: ReadableSpan) -> set[int]:
    return {link.context.span_id for link in span.links}


def number(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)


async def test_a_lease_links_to_its_send_and_its_end_to_both(client: dejaq.Client, spans: InMemorySpanExporter) -> None:
    async with client.producer("mail") as producer, client.consumer("mail") as consumer:
        message_id = await producer.send(b"x", headers={"kind": "test"})
        lease = await anext(aiter(consumer))
        assert lease.headers["kind"] == "test"
        with pytest.raises(DejaqError):
            await producer.send(b"x", id="no id")
        await lease.delete()
    found = named(spans)
    send = next(one for one in spans.get_finished_spans() if one.name == "send mail" and one.status.is_ok)
    taken, deleted = found["lease mail"], found["delete mail"]
    assert linked(taken) == {number(send)}
    assert linked(deleted) == {number(send), number(taken)}
    for span in (send, taken, deleted):
        assert span.attributes is not None
        assert span.attributes["messaging.system"] == "dejaq"
        assert span.attributes["messaging.message.id"] == message_id
    refused = next(one for one in spans.get_finished_spans() if not one.status.is_ok)
    assert refused.attributes is not None
    assert refused.attributes["error.type"] == "INVALID_ID"


async def test_a_batch_is_one_span_that_links_to_each_send(client: dejaq.Client, spans: InMemorySpanExporter) -> None:
    async with client.producer("mail") as producer, client.consumer("mail") as consumer:
        await producer.send_batch([b"a", b"b"])
        await producer.send_batch([b"c"], headers=[{"n": "1"}])
        seen = 0
        while seen < 3:
            batch = await consumer.take(10, timeout=20)
            seen += len(batch)
            await batch.delete()
    sends = {number(one) for one in spans.get_finished_spans() if one.name == "send mail"}
    leases = [one for one in spans.get_finished_spans() if one.name == "lease mail"]
    assert set().union(*map(linked, leases)) == sends
    counts = [(one.attributes or {})["messaging.batch.message_count"] for one in leases]
    assert sum(count for count in counts if isinstance(count, int)) == 3
    deletes = [one for one in spans.get_finished_spans() if one.name == "delete mail"]
    assert set().union(*map(linked, deletes)) == sends | set(map(number, leases))


async def test_the_context_of_a_lease_is_the_parent_of_spans_of_the_program(
    client: dejaq.Client, provider: TracerProvider, spans: InMemorySpanExporter
) -> None:
    async with client.producer("mail") as producer, client.consumer("mail") as consumer:
        await producer.send(b"x")
        lease = await anext(aiter(consumer))
        provider.get_tracer("test").start_span("work", context=tracing.context_of(lease)).end()
        await lease.delete()
    work = named(spans)["work"]
    assert work.parent is not None
    assert work.parent.span_id == number(named(spans)["lease mail"])


@contextmanager
def collector() -> Iterator[tuple[str, Future[ExportTraceServiceRequest]]]:
    """A collector that takes one export over HTTP."""
    received: Future[ExportTraceServiceRequest] = Future()

    class Pages(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.end_headers()
            if not received.done():
                received.set_result(ExportTraceServiceRequest.FromString(body))

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/traces", received
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


async def test_spans_reach_a_collector() -> None:
    with collector() as (address, received):
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(address)))
        async with dejaq.Broker() as broker, tracing.trace(dejaq.connect(broker), provider) as client:
            await client.create_topic("mail")
            async with client.producer("mail") as producer:
                message_id = await producer.send(b"x")
        request = received.result(timeout=20)
        provider.shutdown()
    (span,) = request.resource_spans[0].scope_spans[0].spans
    assert span.name == "send mail"
    assert message_id in {one.value.string_value for one in span.attributes}


def test_without_tracing_nothing_of_it_is_loaded_or_called() -> None:
    """Off by default, and free: the classes of an untraced client are the plain ones."""
    code = (
        "import sys, dejaq, dejaq.sync; client = dejaq.connect('dejaq://127.0.0.1:1');"
        "print(client._producer_class.__name__, client._consumer_class.__name__,"
        "any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["Producer", "Consumer", "False"]
    client = dejaq.connect("dejaq://127.0.0.1:1")
    assert (client._producer_class, client._consumer_class) == (Producer, Consumer)
