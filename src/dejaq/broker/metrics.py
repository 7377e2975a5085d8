"""The broker's metrics for Prometheus: every metric is one line of `METRICS`, from which the docs are generated.

Counts are plain numbers that the event loop increases once per frame; families are built for each scrape.
"""

from __future__ import annotations

import socket
import threading
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, generate_latest, make_wsgi_app
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from dejaq.config import split_address
from dejaq.errors import PortTaken
from dejaq.security.tls import ServerTls

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

PATH = "/metrics"
REQUEST_SECONDS = 10.0
# How long the end of the endpoint may take.
POLL_SECONDS = 0.1
# Connections to the metrics at one time; each has a thread.
SCRAPES_MAX = 32

Labels = tuple[str, ...]
Gauge = Callable[[], Mapping[Labels, float]]


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric: its name, kind (counter, gauge or histogram), labels and meaning."""

    name: str
    kind: str
    help: str
    labels: Labels = ()


CREATED = MetricSpec("dejaq_messages_created", "counter", "Messages created.", ("topic",))
REPEATED = MetricSpec("dejaq_messages_repeated", "counter", "Creates whose message already existed.", ("topic",))
NAMED = MetricSpec(
    "dejaq_bodies_named", "counter", "Bodies that a producer named by their digest instead of sending them.", ("topic",)
)
UPLOADED = MetricSpec(
    "dejaq_body_bytes_uploaded", "counter", "Bytes of large bodies that were uploaded, as they are stored.", ("topic",)
)
DOWNLOADED = MetricSpec(
    "dejaq_body_bytes_downloaded", "counter", "Bytes of large bodies that were sent to clients.", ("topic",)
)
BODIES_FOUND = MetricSpec(
    "dejaq_body_bytes_found", "counter", "Bytes of large bodies that already existed and were not sent.", ("topic",)
)
BODIES_RECLAIMED = MetricSpec(
    "dejaq_bodies_reclaimed", "counter", "Large bodies that were removed because no message referred to them."
)
EDITED = MetricSpec("dejaq_messages_edited", "counter", "Messages moved or edited by their owner.", ("topic",))
CANCELLED = MetricSpec("dejaq_messages_cancelled", "counter", "Messages cancelled by their owner.", ("topic",))
LEASED = MetricSpec("dejaq_messages_leased", "counter", "Messages leased to consumers.", ("topic",))
PUSHED = MetricSpec("dejaq_messages_pushed", "counter", "Messages sent to consumers, including repeats.", ("topic",))
DELETED = MetricSpec("dejaq_messages_deleted", "counter", "Messages deleted by consumers.", ("topic",))
LOG_APPENDED = MetricSpec("dejaq_log_messages_appended", "counter", "Messages appended to logs.", ("topic",))
LOG_PUSHED = MetricSpec("dejaq_log_messages_pushed", "counter", "Messages of logs sent to readers.", ("topic",))
LOG_REMOVED = MetricSpec("dejaq_log_messages_removed", "counter", "Messages that a log no longer keeps.", ("topic",))
LOG_LAG = MetricSpec(
    "dejaq_log_lag", "gauge", "Messages of a log that a group has not committed; the largest lags.", ("topic", "group")
)
LOG_IN_DOUBT = MetricSpec("dejaq_log_in_doubt", "gauge", "Prepared transactions that are not resolved.", ("topic",))
EXTENDED = MetricSpec("dejaq_messages_extended", "counter", "Leases extended, in messages.", ("topic",))
RELEASED = MetricSpec("dejaq_messages_released", "counter", "Messages released to a later time.", ("topic",))
RECALLED = MetricSpec(
    "dejaq_messages_recalled",
    "counter",
    "Messages whose lease was recalled before user code saw them.",
    ("topic",),
)
EXPIRED = MetricSpec("dejaq_messages_expired", "counter", "Leases that expired, in messages.", ("topic",))
TRANSACTIONS = MetricSpec(
    "dejaq_transactions", "counter", "Transactions, by outcome: done, repeated or refused.", ("outcome",)
)
DEAD_LETTERED = MetricSpec(
    "dejaq_messages_dead_lettered",
    "counter",
    "Messages moved to the dead-letter topic: leased too often, or rejected.",
    ("topic", "why"),
)
REDRIVEN = MetricSpec(
    "dejaq_messages_redriven", "counter", "Dead letters sent back, by the topic that received them.", ("topic",)
)
DISCARDED = MetricSpec(
    "dejaq_messages_discarded",
    "counter",
    "Messages of topics with `expires` that were discarded when their time came.",
    ("topic",),
)
OCCURRENCES = MetricSpec(
    "dejaq_cron_occurrences",
    "counter",
    "Occurrences of schedules, by outcome: created, overlapped or missed.",
    ("topic", "outcome"),
)
REFUSED = MetricSpec("dejaq_items_refused", "counter", "Items of batches that were refused, by code.", ("code",))
QUOTA_REFUSED = MetricSpec(
    "dejaq_quota_refused", "counter", "Requests refused because of a quota: topics, rate, pending or bytes.", ("quota",)
)
QUOTA_USED = MetricSpec(
    "dejaq_quota_used_ratio",
    "gauge",
    "The largest share of its quota of pending messages or of bytes that one creator of topics uses.",
    ("quota",),
)
SECURITY_EVENTS = MetricSpec(
    "dejaq_security_events", "counter", "Events of the security log, such as refusals.", ("event", "outcome")
)
SECURITY_WAITING = MetricSpec(
    "dejaq_security_events_waiting", "gauge", "Different events of the security log that are not written yet."
)
ERRORS = MetricSpec("dejaq_errors", "counter", "Requests answered with an error, by code.", ("code",))
QUERIES_REFUSED = MetricSpec(
    "dejaq_queries_refused",
    "counter",
    "Counts, histograms and pages that were refused because their client asks for too much, by code.",
    ("code",),
)
FRAMES = MetricSpec("dejaq_frames", "counter", "Frames received from clients, by command.", ("command",))
LATENESS = MetricSpec(
    "dejaq_push_lateness_seconds",
    "histogram",
    "How long after its time a message was sent; 0 if it was sent before its time.",
    ("topic",),
)
LOOP_LAG = MetricSpec(
    "dejaq_loop_lag_seconds",
    "histogram",
    "How long the event loop took to answer the watchdog, which asks about 20 times per second.",
)
SESSIONS = MetricSpec("dejaq_sessions", "gauge", "Client sessions, by state.", ("state",))
TOPICS = MetricSpec("dejaq_topics", "gauge", "Topics, by state.", ("state",))
INFLIGHT = MetricSpec("dejaq_inflight_messages", "gauge", "Messages leased to connected consumers.", ("topic",))
PENDING = MetricSpec(
    "dejaq_pending_messages", "gauge", "Messages in the store, by status; sampled.", ("topic", "status")
)
OLDEST = MetricSpec(
    "dejaq_oldest_available_seconds",
    "gauge",
    "How long the oldest available message of a priority topic has waited; sampled, most and least urgent ones.",
    ("topic", "priority"),
)
DRIFT = MetricSpec("dejaq_clock_drift_seconds", "gauge", "The movement of the wall clock against the monotonic clock.")
CLIENT_OFFSET = MetricSpec(
    "dejaq_client_clock_offset_seconds", "gauge", "The largest clock offset of a connected client."
)
CLIENT_LATENCY = MetricSpec("dejaq_client_latency_seconds", "gauge", "The largest latency of a connected client.")
DEGRADED = MetricSpec("dejaq_degraded", "gauge", "1 for each current degradation.", ("reason",))
MEMORY = MetricSpec("dejaq_memory_bytes", "gauge", "Resident memory of the process.")
MEMBERS = MetricSpec(
    "dejaq_cluster_members", "gauge", "The number of brokers in the cluster that this broker knows, including itself."
)
PEER_OFFSET = MetricSpec(
    "dejaq_peer_clock_offset_seconds",
    "gauge",
    "The difference between the clock of another broker and this one.",
    ("broker",),
)
NOTICES = MetricSpec("dejaq_peer_nudges", "gauge", "Wake-ups sent to other brokers since the start.")
STORAGE = MetricSpec("dejaq_storage", "gauge", "Figures of the storage, such as commits.", ("figure",))
REFUSED_CALLERS = MetricSpec(
    "dejaq_callers_refused", "counter", "Callers that were not accepted, by the code of the answer.", ("code",)
)
ENDED_STREAMS = MetricSpec(
    "dejaq_streams_ended",
    "counter",
    "Open streams that were ended because their credentials expired or were revoked.",
)
USER_SESSIONS = MetricSpec("dejaq_user_sessions", "gauge", "Sessions of authenticated callers that are open.")
TLS_EXPIRY = MetricSpec(
    "dejaq_tls_certificate_expiry_seconds",
    "gauge",
    "When the certificate in use for clients or peers expires, in seconds since 1970.",
    ("endpoint",),
)
TLS_FAILED = MetricSpec(
    "dejaq_tls_reload_failed",
    "gauge",
    "1 while the changed files of a certificate cannot be used and the earlier certificate stays in use.",
    ("endpoint",),
)
JOURNAL_EVENTS = MetricSpec("dejaq_journal_events", "counter", "Events written to journal segments.")
JOURNAL_LAG = MetricSpec(
    "dejaq_journal_lag",
    "gauge",
    "Journal records in the store that are not yet in a segment, in records and bytes.",
    ("unit",),
)
JOURNAL_SEGMENTS = MetricSpec("dejaq_journal_segments", "gauge", "The number of journal segments on disk.")
JOURNAL_BYTES = MetricSpec("dejaq_journal_bytes", "gauge", "The size of the journal segments on disk.")

METRICS: tuple[MetricSpec, ...] = (
    CREATED, REPEATED, NAMED, EDITED, CANCELLED, LEASED, PUSHED, DELETED, EXTENDED, RELEASED, RECALLED, EXPIRED,
    DEAD_LETTERED, REDRIVEN,
    TRANSACTIONS, REFUSED, ERRORS, FRAMES, LATENESS, LOOP_LAG, SESSIONS, TOPICS, INFLIGHT, PENDING, OLDEST, DRIFT,
    CLIENT_OFFSET, CLIENT_LATENCY, DEGRADED, MEMORY, MEMBERS, PEER_OFFSET, NOTICES, STORAGE,
    JOURNAL_EVENTS, JOURNAL_LAG, JOURNAL_SEGMENTS, JOURNAL_BYTES,
    TLS_EXPIRY, TLS_FAILED, SECURITY_EVENTS, SECURITY_WAITING, QUOTA_REFUSED, QUOTA_USED,
    REFUSED_CALLERS, ENDED_STREAMS, USER_SESSIONS,
    QUERIES_REFUSED, DISCARDED, OCCURRENCES, UPLOADED, DOWNLOADED, BODIES_FOUND, BODIES_RECLAIMED,
    LOG_APPENDED, LOG_PUSHED, LOG_REMOVED, LOG_LAG, LOG_IN_DOUBT,
)  # fmt: skip

# So many topics have series of their own; the others are one series, of the topic `REST`, which is no topic's name.
TOPIC_SERIES_MAX = 100
REST = "(other)"
# A topic takes the series of another that is this much less busy.
BUSIER = 2

LATENESS_BOUNDS_MS: tuple[int, ...] = (0, 1, 2, 5, 10, 20, 50, 100, 250, 1_000, 5_000, 60_000)


class Metrics(Collector):
    """The figures of one broker, in its own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._counts: dict[MetricSpec, dict[Labels, float]] = {spec: {} for spec in METRICS if spec.kind == "counter"}
        self._lateness: dict[Labels, Lateness] = {}
        self._gauges: dict[MetricSpec, Gauge] = {}
        self._distributions: dict[MetricSpec, Distribution] = {}
        # Topics with series of their own, and how much was counted for each topic since the last choice.
        self._shown: set[str] = set()
        self._activity: dict[str, float] = {}
        self.registry.register(self)

    def add(self, spec: MetricSpec, amount: float, *labels: str) -> None:
        """Add to a counter."""
        if amount:
            counts = self._counts[spec]
            if labels and spec.labels[0] == "topic":
                self._activity[labels[0]] = self._activity.get(labels[0], 0) + amount
                if labels[0] not in self._shown:
                    labels = (self.series_of(labels[0]), *labels[1:])
            counts[labels] = counts.get(labels, 0) + amount

    def series_of(self, topic: str) -> str:
        """The value of the label `topic` for a topic: its name, or that of the series of the rest."""
        if topic not in self._shown:
            if len(self._shown) >= TOPIC_SERIES_MAX:
                return REST
            self._shown.add(topic)
        return topic

    @property
    def shown(self) -> frozenset[str]:
        """The topics with series of their own."""
        return frozenset(self._shown.copy())

    def choose_topics(self, known: Collection[str]) -> None:
        """Forget topics that are gone, and give the busiest topics since the last choice series of their own.

        A topic that gets its own series starts there at 0, and what it counted before stays with the rest. So every
        series only grows while it exists.
        """
        activity, self._activity = self._activity, {}
        self._forget([topic for topic in self._shown if topic not in known])
        waiting = nlargest(TOPIC_SERIES_MAX, activity.keys() - self._shown, key=activity.__getitem__)
        quiet = sorted(self._shown, key=lambda topic: activity.get(topic, 0))
        for topic in [topic for topic in waiting if topic in known]:
            if len(self._shown) >= TOPIC_SERIES_MAX:
                if not quiet or activity[topic] <= BUSIER * activity.get(quiet[0], 0):
                    break
                self._give_to_rest(quiet.pop(0))
            self._shown.add(topic)

    def value(self, spec: MetricSpec, *labels: str) -> float:
        """The value of a counter."""
        return self._counts[spec].get(labels, 0)

    def gauge(self, spec: MetricSpec, read: Gauge) -> None:
        """Set the function that reads a gauge at each scrape."""
        self._gauges[spec] = read

    def distribution(self, spec: MetricSpec, values: Distribution) -> None:
        """Set the values of a histogram without labels."""
        self._distributions[spec] = values

    def late(self, topic: str, ts: Sequence[int], now: int) -> None:
        """Record the lateness of a push whose times are sorted."""
        topic = self.series_of(topic)
        lateness = self._lateness.get((topic,))
        if lateness is None:
            lateness = self._lateness[(topic,)] = Lateness()
        lateness.observe(ts, now)

    def _forget(self, topics: Collection[str]) -> None:
        """Remove the series of topics."""
        self._shown.difference_update(topics)
        for counts in self._topic_counts():
            for labels in [labels for labels in list(counts) if labels[0] in topics]:
                del counts[labels]
        for labels in [labels for labels in list(self._lateness) if labels[0] in topics]:
            del self._lateness[labels]

    def _give_to_rest(self, topic: str) -> None:
        """End the series of a topic; what they have counted is added to the rest."""
        for counts in self._topic_counts():
            for labels in [labels for labels in list(counts) if labels[0] == topic]:
                rest = (REST, *labels[1:])
                counts[rest] = counts.get(rest, 0) + counts[labels]
        if (topic,) in self._lateness:
            self._lateness.setdefault((REST,), Lateness()).merge(self._lateness[(topic,)])
        self._forget([topic])

    def _topic_counts(self) -> list[dict[Labels, float]]:
        return [counts for spec, counts in self._counts.items() if spec.labels[:1] == ("topic",)]

    def collect(self) -> Iterable[Metric]:
        """The families of one scrape; called on the exposition's thread."""
        for spec, counts in self._counts.items():
            counter = CounterMetricFamily(spec.name, spec.help, labels=spec.labels)
            for labels, value in dict(counts).items():
                counter.add_metric(labels, value)
            yield counter
        histogram = HistogramMetricFamily(LATENESS.name, LATENESS.help, labels=LATENESS.labels)
        for labels, lateness in dict(self._lateness).items():
            histogram.add_metric(labels, buckets=lateness.cumulative(), sum_value=lateness.sum_ms / 1_000)
        yield histogram
        for spec, values in self._distributions.items():
            single = HistogramMetricFamily(spec.name, spec.help)
            single.add_metric((), buckets=values.cumulative(), sum_value=values.sum_ms / 1_000)
            yield single
        for spec, read in self._gauges.items():
            gauge = GaugeMetricFamily(spec.name, spec.help, labels=spec.labels)
            for labels, value in dict(read()).items():
                gauge.add_metric(labels, value)
            yield gauge

    def describe(self) -> Iterable[Metric]:
        """Nothing: the gauges may not be readable yet when the registry asks."""
        return ()

    def render(self) -> bytes:
        """The text of one scrape; called on a thread of its own."""
        return generate_latest(self.registry)

    def expose(self, address: str, tls: ServerTls | None = None) -> tuple[str, Callable[[], None]]:
        """Serve the registry at `address` on a thread; gives the real address and the function that ends it."""
        host, port = split_address(address, key="metrics")
        try:
            server = make_server(host, port, _only_metrics(self.registry), _servers(host, tls), _Handler)
        except OSError as error:
            raise PortTaken(f"metrics address {address}: {error.strerror}") from None
        thread = threading.Thread(target=server.serve_forever, args=(POLL_SECONDS,), name="metrics", daemon=True)
        thread.start()

        def close() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return f"{host}:{server.server_port}", close


class _Handler(WSGIRequestHandler):
    """One request; a client that says nothing is left."""

    timeout = REQUEST_SECONDS

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a line for each scrape would be most of the log."""


def _servers(host: str, tls: ServerTls | None) -> type[WSGIServer]:
    class MetricsServer(ThreadingMixIn, WSGIServer):
        daemon_threads = True
        # Clients that connect at the same time wait in the kernel; beyond the usual 5 they try again a second later.
        request_queue_size = SCRAPES_MAX
        _places = threading.BoundedSemaphore(SCRAPES_MAX)
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

        def get_request(self) -> tuple[socket.socket, Any]:
            """The next connection; its handshake is done by its own thread, with that thread's limit of time."""
            connection, peer = super().get_request()
            if tls is not None:
                context = tls.material.context
                connection = context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
            return connection, peer

        def process_request(self, request: Any, client_address: Any) -> None:
            """Serve a connection in a thread of its own; one connection too many is closed."""
            if self._places.acquire(blocking=False):
                super().process_request(request, client_address)
            else:
                self.shutdown_request(request)

        def process_request_thread(self, request: Any, client_address: Any) -> None:
            """Serve a connection, and give its place back."""
            try:
                super().process_request_thread(request, client_address)
            finally:
                self._places.release()

        def handle_error(self, request: object, client_address: object) -> None:
            """Nothing: a client that does not speak TLS, or is not accepted, is disconnected."""

    return MetricsServer


def _only_metrics(registry: CollectorRegistry) -> WSGIApplication:
    """The metrics at their path; every other path is not found."""
    metrics = make_wsgi_app(registry)

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ.get("PATH_INFO", "") == PATH:
            found: Iterable[bytes] = metrics(environ, start_response)
            return found
        start_response("404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
        return [f"the metrics are at {PATH}\n".encode()]

    return answer


class Distribution:
    """A histogram of single values, in milliseconds."""

    def __init__(self, bounds_ms: Sequence[float]) -> None:
        self._bounds_ms = bounds_ms
        self._counts = [0] * (len(bounds_ms) + 1)
        self.sum_ms = 0.0

    def observe(self, value_ms: float) -> None:
        """Add a value."""
        self._counts[bisect_left(self._bounds_ms, value_ms)] += 1
        self.sum_ms += value_ms

    def cumulative(self) -> list[tuple[str, float]]:
        """Counts up to each bound, in the format of Prometheus."""
        return _cumulative(self._bounds_ms, self._counts)


class Lateness:
    """A histogram that is filled once per push: the times are sorted, so each bound costs one search."""

    def __init__(self) -> None:
        self._counts = [0] * (len(LATENESS_BOUNDS_MS) + 1)
        self.sum_ms = 0

    def observe(self, ts: Sequence[int], now: int) -> None:
        """Add the lateness of every time at `now`; a time in the future counts as 0."""
        above = len(ts)
        for index, bound in enumerate(LATENESS_BOUNDS_MS):
            # Rows before this position exceed the bound.
            later = bisect_left(ts, now - bound)
            self._counts[index] += above - later
            above = later
        self._counts[-1] += above
        late = bisect_left(ts, now)
        self.sum_ms += now * late - sum(ts[:late])

    def merge(self, other: Lateness) -> None:
        """Add what another histogram has counted."""
        self._counts = [own + theirs for own, theirs in zip(self._counts, other._counts, strict=True)]
        self.sum_ms += other.sum_ms

    def cumulative(self) -> list[tuple[str, float]]:
        """Counts up to each bound, in the format of Prometheus."""
        return _cumulative(LATENESS_BOUNDS_MS, self._counts)


def _cumulative(bounds_ms: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    total, out = 0, []
    bounds = [str(bound / 1_000) for bound in bounds_ms] + ["+Inf"]
    for bound, count in zip(bounds, list(counts), strict=True):
        total += count
        out.append((bound, float(total)))
    return out
