"""Metrics of a pipeline that watches a journal, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from dejaq.pipeline.watching.conditions import KINDS

# More alarms than this have no series of their own.
SERIES_MAX = 200


class PipelineMetrics:
    """The metrics of one pipeline."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.events = Counter("dejaq_pipeline_events", "Events added to the lake", registry=self.registry)
        self.commits = Counter("dejaq_pipeline_commits", "Commits made", registry=self.registry)
        self.lag = Gauge(
            "dejaq_pipeline_lag_seconds", "Time since the newest event in the lake", registry=self.registry
        )
        self.batch = Gauge("dejaq_pipeline_batch_seconds", "Duration of the last commit", registry=self.registry)
        self.missing = Gauge(
            "dejaq_pipeline_missing_records", "Records that the lake does not have", registry=self.registry
        )
        self._alarms = Gauge(
            "dejaq_pipeline_alarm", "1 while an alarm is firing", ["kind", "subject"], registry=self.registry
        )
        self._kinds = Gauge(
            "dejaq_pipeline_alarms", "Number of alarms that are firing", ["kind"], registry=self.registry
        )

    def show_alarms(self, firing: Mapping[str, int]) -> None:
        """Show the alarms that are firing, and no others."""
        self._alarms.clear()
        for name in list(firing)[:SERIES_MAX]:
            kind, _, subject = name.partition("/")
            self._alarms.labels(kind, subject).set(1)
        for kind in KINDS:
            self._kinds.labels(kind).set(sum(name.startswith(f"{kind}/") for name in firing))

    def serve(self, host: str, port: int) -> Callable[[], None]:
        """Answer on a port until the function that is returned is called."""
        server, thread = start_http_server(port, host, registry=self.registry)

        def end() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return end
