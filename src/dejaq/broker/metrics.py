"""What the broker tells Prometheus: every metric is one line of `METRICS`, from which the docs are made.

Counts are plain numbers that the event loop adds to, a frame at a time; families are built when a scrape asks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from dejaq.config import split_address
from dejaq.errors import PortTaken

Labels = tuple[str, ...]
Gauge = Callable[[], Mapping[Labels, float]]


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric: its name, kind (counter, gauge or histogram), labels and what it says."""

    name: str
    kind: str
    help: str
    labels: Labels = ()


CREATED = MetricSpec("dejaq_messages_created", "counter", "Messages created.", ("topic",))
REPEATED = MetricSpec(
    "dejaq_messages_repeated", "counter", "Creates that found their message already there.", ("topic",)
)
NAMED = MetricSpec(
    "dejaq_bodies_named", "counter", "Bodies that were named by their digest instead of sent.", ("topic",)
)
UPLOADED = MetricSpec(
    "dejaq_body_bytes_uploaded", "counter", "Bytes of large bodies that were uploaded, as they are stored.", ("topic",)
)
DOWNLOADED = MetricSpec(
    "dejaq_body_bytes_downloaded", "counter", "Bytes of large bodies that were sent to clients.", ("topic",)
)
BODIES_FOUND = MetricSpec(
    "dejaq_body_bytes_found", "counter", "Bytes of large bodies that were there before they were sent.", ("topic",)
)
BODIES_RECLAIMED = MetricSpec(
    "dejaq_bodies_reclaimed", "counter", "Large bodies removed because no message came to refer to them."
)
EDITED = MetricSpec("dejaq_messages_edited", "counter", "Messages moved or edited by their owner.", ("topic",))
CANCELLED = MetricSpec("dejaq_messages_cancelled", "counter", "Messages cancelled by their owner.", ("topic",))
LEASED = MetricSpec("dejaq_messages_leased", "counter", "Messages leased to consumers.", ("topic",))
PUSHED = MetricSpec("dejaq_messages_pushed", "counter", "Messages sent to consumers, repeats included.", ("topic",))
DELETED = MetricSpec("dejaq_messages_deleted", "counter", "Messages deleted by consumers.", ("topic",))
EXTENDED = MetricSpec("dejaq_messages_extended", "counter", "Leases extended, in messages.", ("topic",))
RELEASED = MetricSpec("dejaq_messages_released", "counter", "Messages released to a later time.", ("topic",))
RETURNED = MetricSpec(
    "dejaq_messages_returned",
    "counter",
    "Messages given back or recalled before user code saw them.",
    ("topic",),
)
EXPIRED = MetricSpec("dejaq_messages_expired", "counter", "Leases that ended unsettled, in messages.", ("topic",))
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
    "dejaq_messages_redriven", "counter", "Dead letters moved back, by the topic they went to.", ("topic",)
)
LAPSED = MetricSpec(
    "dejaq_messages_lapsed",
    "counter",
    "Messages of topics that expire, removed unread when their time came.",
    ("topic",),
)
OCCURRENCES = MetricSpec(
    "dejaq_cron_occurrences",
    "counter",
    "Occurrences of schedules, by outcome: created, overlapped or missed.",
    ("topic", "outcome"),
)
REFUSED = MetricSpec("dejaq_items_refused", "counter", "Items of batches that were refused, by code.", ("code",))
ERRORS = MetricSpec("dejaq_errors", "counter", "Requests answered with an error, by code.", ("code",))
FRAMES = MetricSpec("dejaq_frames", "counter", "Frames received from clients, by command.", ("command",))
LATENESS = MetricSpec(
    "dejaq_push_lateness_seconds",
    "histogram",
    "How long after its time a message was sent; 0 when ahead of it.",
    ("topic",),
)
SESSIONS = MetricSpec("dejaq_sessions", "gauge", "Client sessions, by state.", ("state",))
TOPICS = MetricSpec("dejaq_topics", "gauge", "Topics, by state.", ("state",))
INFLIGHT = MetricSpec("dejaq_inflight_messages", "gauge", "Messages leased to live sessions.", ("topic",))
PENDING = MetricSpec(
    "dejaq_pending_messages", "gauge", "Messages in the store, by status; sampled.", ("topic", "status")
)
OLDEST = MetricSpec(
    "dejaq_oldest_available_seconds",
    "gauge",
    "How long the oldest available message of a topic by priority waits; sampled, for the outermost priorities.",
    ("topic", "priority"),
)
DRIFT = MetricSpec("dejaq_clock_drift_seconds", "gauge", "How far the wall clock moved against the monotonic one.")
CLIENT_OFFSET = MetricSpec(
    "dejaq_client_clock_offset_seconds", "gauge", "The largest clock offset that a live client has measured."
)
CLIENT_LATENCY = MetricSpec(
    "dejaq_client_latency_seconds", "gauge", "The largest latency that a live client has measured."
)
DEGRADED = MetricSpec("dejaq_degraded", "gauge", "1 for each degradation that stands.", ("reason",))
MEMORY = MetricSpec("dejaq_memory_bytes", "gauge", "Resident memory of the process.")
MEMBERS = MetricSpec("dejaq_cluster_members", "gauge", "Brokers of the cluster that this one knows, itself included.")
PEER_OFFSET = MetricSpec(
    "dejaq_peer_clock_offset_seconds", "gauge", "How far the clock of another broker is from this one's.", ("broker",)
)
NUDGES = MetricSpec("dejaq_peer_nudges", "gauge", "Nudges sent to other brokers since the start.")
STORAGE = MetricSpec("dejaq_storage", "gauge", "What the storage tells of itself, such as commits.", ("figure",))
JOURNAL_EVENTS = MetricSpec("dejaq_journal_events", "counter", "Events written to segments of the journal.")
JOURNAL_LAG = MetricSpec(
    "dejaq_journal_lag", "gauge", "What is in the store and not yet in a segment, in records and bytes.", ("unit",)
)
JOURNAL_SEGMENTS = MetricSpec("dejaq_journal_segments", "gauge", "Segments of the journal on disk.")
JOURNAL_BYTES = MetricSpec("dejaq_journal_bytes", "gauge", "What they take on disk.")

METRICS: tuple[MetricSpec, ...] = (
    CREATED, REPEATED, NAMED, EDITED, CANCELLED, LEASED, PUSHED, DELETED, EXTENDED, RELEASED, RETURNED, EXPIRED,
    DEAD_LETTERED, REDRIVEN,
    TRANSACTIONS, REFUSED, ERRORS, FRAMES, LATENESS, SESSIONS, TOPICS, INFLIGHT, PENDING, OLDEST, DRIFT, CLIENT_OFFSET,
    CLIENT_LATENCY, DEGRADED, MEMORY, MEMBERS, PEER_OFFSET, NUDGES, STORAGE,
    JOURNAL_EVENTS, JOURNAL_LAG, JOURNAL_SEGMENTS, JOURNAL_BYTES,
    LAPSED, OCCURRENCES, UPLOADED, DOWNLOADED, BODIES_FOUND, BODIES_RECLAIMED,
)  # fmt: skip

LATENESS_BOUNDS_MS: tuple[int, ...] = (0, 1, 2, 5, 10, 20, 50, 100, 250, 1_000, 5_000, 60_000)


class Metrics(Collector):
    """The numbers of one broker, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._counts: dict[MetricSpec, dict[Labels, float]] = {spec: {} for spec in METRICS if spec.kind == "counter"}
        self._lateness: dict[Labels, Lateness] = {}
        self._gauges: dict[MetricSpec, Gauge] = {}
        self.registry.register(self)

    def add(self, spec: MetricSpec, amount: float, *labels: str) -> None:
        """Add to a counter."""
        if amount:
            counts = self._counts[spec]
            counts[labels] = counts.get(labels, 0) + amount

    def value(self, spec: MetricSpec, *labels: str) -> float:
        """What a counter stands at."""
        return self._counts[spec].get(labels, 0)

    def gauge(self, spec: MetricSpec, read: Gauge) -> None:
        """Say where a gauge is read at each scrape."""
        self._gauges[spec] = read

    def late(self, topic: str, ts: Sequence[int], now: int) -> None:
        """Record the lateness of a push whose times are sorted."""
        lateness = self._lateness.get((topic,))
        if lateness is None:
            lateness = self._lateness[(topic,)] = Lateness()
        lateness.observe(ts, now)

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
        for spec, read in self._gauges.items():
            gauge = GaugeMetricFamily(spec.name, spec.help, labels=spec.labels)
            for labels, value in dict(read()).items():
                gauge.add_metric(labels, value)
            yield gauge

    def describe(self) -> Iterable[Metric]:
        """Nothing: the gauges may not be readable yet when the registry asks."""
        return ()

    def expose(self, address: str) -> tuple[str, Callable[[], None]]:
        """Serve the registry at `address` on a thread; gives the real address and the function that ends it."""
        host, port = split_address(address, key="metrics")
        try:
            server, thread = start_http_server(port=port, addr=host, registry=self.registry)
        except OSError as error:
            raise PortTaken(f"metrics address {address}: {error.strerror}") from None

        def close() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return f"{host}:{server.server_port}", close


class Lateness:
    """A histogram filled a push at a time: the times are sorted, so each bound costs one search."""

    def __init__(self) -> None:
        self._counts = [0] * (len(LATENESS_BOUNDS_MS) + 1)
        self.sum_ms = 0

    def observe(self, ts: Sequence[int], now: int) -> None:
        """Add the lateness at `now` of every time; what is ahead of its time counts as 0."""
        above = len(ts)
        for index, bound in enumerate(LATENESS_BOUNDS_MS):
            # Rows before this place are later than the bound.
            later = bisect_left(ts, now - bound)
            self._counts[index] += above - later
            above = later
        self._counts[-1] += above
        late = bisect_left(ts, now)
        self.sum_ms += now * late - sum(ts[:late])

    def cumulative(self) -> list[tuple[str, float]]:
        """Counts up to each bound, as Prometheus wants them."""
        total, out = 0, []
        bounds = [str(bound / 1_000) for bound in LATENESS_BOUNDS_MS] + ["+Inf"]
        for bound, count in zip(bounds, list(self._counts), strict=True):
            total += count
            out.append((bound, float(total)))
        return out
