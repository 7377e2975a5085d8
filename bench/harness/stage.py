"""A server of a system with temporary data, for the duration of a bench."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.harness.apart import apart
from bench.harness.crew import Crew
from bench.harness.figures import Figures
from bench.harness.server import cpu_seconds, rss_mb
from bench.systems.base import Server, System
from dejaq.testing.servers.memory_folder import new_folder, remove_folder


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one bench of one system: `shape` names the work, `actual` how much of it was done."""

    shape: dict[str, Any]
    figures: Figures
    actual: dict[str, Any] = field(default_factory=dict)
    extras: dict[str, Any] = field(default_factory=dict)


class Stage:
    """A running server and its measurements."""

    def __init__(self, system: System, server: Server) -> None:
        self.system = system
        self.server = server

    def crew(self) -> Crew:
        """Client processes for this server."""
        return Crew(self.system.name, self.server.address)

    def create_topic(self, buckets: int) -> None:
        """Create the topic of the clients with so many buckets, before the first client would create it."""
        assert self.system.buckets is not None
        apart(self.system.buckets, self.server.address, buckets)

    def cpu_seconds(self) -> float:
        """The CPU time that the server has used."""
        return sum(map(cpu_seconds, self.server.pids))

    def rss_mb(self) -> float:
        """The memory that the server uses now."""
        return round(sum(map(rss_mb, self.server.pids)), 1)


@contextmanager
def staged(system: System) -> Iterator[Stage]:
    """Start the system's server with new data; stop it and remove the data at the end."""
    folder = new_folder(f"bench-{system.name}", place=Path(tempfile.gettempdir()))
    server = system.server(folder)
    try:
        server.start()
        yield Stage(system, server)
    finally:
        server.stop()
        discard = getattr(server, "discard", None)
        if discard is not None:
            discard()
        remove_folder(folder)
