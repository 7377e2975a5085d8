"""A server of a system with temporary data, for as long as a bench needs it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.harness.crew import Crew
from bench.harness.figures import Figures
from bench.harness.server import cpu_seconds, rss_mb
from bench.systems.base import Server, System


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one bench of one system gave: `shape` names the work, `actual` how much of it there was."""

    shape: dict[str, Any]
    figures: Figures
    actual: dict[str, Any] = field(default_factory=dict)
    extras: dict[str, Any] = field(default_factory=dict)


class Stage:
    """A running server and the ways to look at it."""

    def __init__(self, system: System, server: Server) -> None:
        self.system = system
        self.server = server

    def crew(self) -> Crew:
        """Client processes for this server."""
        return Crew(self.system.name, self.server.address)

    def cpu_seconds(self) -> float:
        """CPU the server has used."""
        return cpu_seconds(self.server.pid)

    def rss_mb(self) -> float:
        """Memory the server has now."""
        return rss_mb(self.server.pid)


@contextmanager
def staged(system: System) -> Iterator[Stage]:
    """Start the system's server on new data; stop it and remove the data at the end."""
    folder = Path(tempfile.mkdtemp(prefix=f"dejaq-bench-{system.name}-"))
    server = system.server(folder)
    try:
        server.start()
        yield Stage(system, server)
    finally:
        server.stop()
        discard = getattr(server, "discard", None)
        if discard is not None:
            discard()
        shutil.rmtree(folder, ignore_errors=True)
