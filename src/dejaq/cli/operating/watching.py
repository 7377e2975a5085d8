"""`dejaq pipeline watch`: the stream that keeps the lake current, and the alarms about what is in it."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from dejaq.cli.operating.ingestion import take_in, tell_state, warn_of
from dejaq.cli.operating.pipeline_options import Watching
from dejaq.cli.terminal.invocation import Invocation
from dejaq.errors import InvalidArgument

if TYPE_CHECKING:
    from dejaq.pipeline.lake.gaps import Gap
    from dejaq.pipeline.lake.lake import Lake
    from dejaq.pipeline.watching.alarms import Notice, Receiver
    from dejaq.pipeline.watching.metrics import PipelineMetrics

# Segments that fill a gap are behind the stream's position, so the directory is looked at as well.
_GAPS_EVERY_S = 10.0


def watch_lake(
    invocation: Invocation, lake: Lake, journal: Path, watching: Watching, *, events_max: int, keep_ms: int | None
) -> None:
    """Keep a lake current until Ctrl-C, or until it was looked at as often as asked."""
    with ExitStack() as stack:
        watcher = _LakeWatcher(invocation, lake, journal, watching, events_max, keep_ms)
        if watching.metrics:
            host, _, port = watching.metrics.rpartition(":")
            if not port.isdigit():
                raise InvalidArgument(f"--metrics={watching.metrics} is not HOST:PORT")
            stack.callback(watcher.metrics.serve(host or "127.0.0.1", int(port)))
        # Commits that were made remain; the next run adds the rest.
        with suppress(KeyboardInterrupt):
            watcher.run()
        tell_state(invocation.output, lake.files.address, lake.head, watcher.missing, watcher.events)


class _LakeWatcher:
    """The query, and the looks at the lake between its micro-batches."""

    def __init__(
        self,
        invocation: Invocation,
        lake: Lake,
        journal: Path,
        watching: Watching,
        events_max: int,
        keep_ms: int | None,
    ) -> None:
        from dejaq.pipeline.watching.alarms import AlarmState
        from dejaq.pipeline.watching.metrics import PipelineMetrics
        from dejaq.pipeline.watching.receivers import AlarmTopic, Webhook

        self._invocation, self._lake, self._journal, self._watching = invocation, lake, journal, watching
        self._events_max, self._keep_ms = events_max, keep_ms
        self.metrics: PipelineMetrics = PipelineMetrics()
        self.missing: Sequence[Gap] = ()
        self.events = 0
        # The query takes in what is new in a thread of its own; looks must not meet that.
        self._lock = threading.Lock()
        self._looked_at = -1
        self._warned: Sequence[Gap] = ()
        receivers: dict[str, Receiver] = {"log": self._tell}
        if watching.webhook:
            receivers["webhook"] = Webhook(watching.webhook)
        if watching.alarm_topic:
            receivers["topic"] = AlarmTopic(invocation.url, watching.alarm_topic)
        self._alarms = AlarmState(lake.files, receivers)

    def run(self) -> None:
        from dejaq.pipeline.watching.stream import check_running, follow

        query = follow(self._lake, self._journal, self._take, every_s=self._watching.interval_s)
        try:
            looks = 0
            gaps_at = time.monotonic()
            while True:
                begun = time.monotonic()
                if looks == 0 or self._watching.times is not None:
                    query.processAllAvailable()
                check_running(query)
                if begun - gaps_at >= _GAPS_EVERY_S or self._watching.times is not None:
                    gaps_at = begun
                    self._take()
                self._look()
                looks += 1
                if looks == self._watching.times:
                    return
                time.sleep(max(0.0, self._watching.interval_s - (time.monotonic() - begun)))
        finally:
            query.stop()

    def _take(self) -> None:
        with self._lock:
            begun, version = time.monotonic(), self._lake.head.version
            taken = take_in(self._invocation, self._lake, self._journal, self._events_max, self._keep_ms)
            self.missing = taken.missing
            if taken.events:
                self.events += taken.events
                self.metrics.events.inc(taken.events)
                self.metrics.commits.inc(self._lake.head.version - version)
                self.metrics.batch.set(time.monotonic() - begun)

    def _look(self) -> None:
        """Find the conditions that hold, and report those that began or ended."""
        from dejaq.pipeline.watching.conditions import of_facts, of_gaps, of_silence
        from dejaq.pipeline.watching.looking import last_hour, overdue

        with self._lock:
            lake, now_ms = self._lake, int(time.time() * 1000)
            newest_ms = lake.head.reached_ms
            if self.missing != self._warned:
                self._warned = self.missing
                warn_of(self._invocation.output, self.missing)
            if lake.head.version != self._looked_at:
                self._looked_at = lake.head.version
                self._minutes = last_hour(lake)
            found = of_facts(self._minutes, objective=self._watching.objective) + of_gaps(self.missing)
            silent_ms = int(self._watching.silent_s * 1000)
            if newest_ms and now_ms - newest_ms >= silent_ms:
                found += of_silence(newest_ms, now_ms, overdue(lake, now_ms - silent_ms), silent_ms=silent_ms)
            self._alarms.update(found, now_ms)
            self.metrics.lag.set(max(0, now_ms - newest_ms) / 1000 if newest_ms else 0)
            self.metrics.missing.set(sum(gap.records for gap in self.missing))
            self.metrics.show_alarms(self._alarms.firing)

    def _tell(self, notice: Notice) -> None:
        self._invocation.output.record({"alarm": notice.body()}, f"alarm {notice.state}: {notice.text}")
