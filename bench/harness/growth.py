"""How the memory of a server and of its client grows while messages pass."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field

from bench.harness.figures import Figures, slope
from bench.harness.server import rss_mb

SAMPLE_SECONDS = 0.25


@dataclass(slots=True)
class Growth:
    """Samples of resident memory by the number of messages that passed so far."""

    server_pid: int
    every_seconds: float = SAMPLE_SECONDS
    samples: list[tuple[int, float, float]] = field(default_factory=list)
    _next: float = 0.0

    def look(self, messages: int, *, at_once: bool = False) -> None:
        """Take a sample, unless the last one is more recent than `every_seconds`."""
        now = time.monotonic()
        if now < self._next and not at_once:
            return
        self._next = now + self.every_seconds
        self.samples.append((messages, rss_mb(self.server_pid), rss_mb(os.getpid())))

    def figures(self) -> Figures:
        """The slopes in MB per million messages, without the first tenth, and the memory at both ends of that."""
        return growth_figures(self.samples)


def growth_figures(samples: list[tuple[int, float, float]]) -> Figures:
    """The same for given samples: messages, MB of the server, MB of the client."""
    if not samples:
        return {}
    last = samples[-1][0]
    rest = [sample for sample in samples if sample[0] >= last / 10]
    server = slope([(messages / 1e6, rss) for messages, rss, _ in rest])
    client = slope([(messages / 1e6, rss) for messages, _, rss in rest])
    span = (rest[-1][0] - rest[0][0]) / 1e6
    return {
        "rss_start_mb": rest[0][1],
        "rss_mb": rest[-1][1],
        "rss_slope_mb_per_million": None if server is None else round(server, 3),
        # What the straight line grew by, in relation to where it began.
        "rss_growth_percent": None if server is None else round(100 * server * span / max(1.0, rest[0][1]), 2),
        "client_slope_mb_per_million": None if client is None else round(client, 3),
        "client_rss_mb": rest[-1][2],
    }
