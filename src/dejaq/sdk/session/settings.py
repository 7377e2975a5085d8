"""Client-wide settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.version import PROTOCOL, package_version
from dejaq.timekeeper.clock import Clock

DEADLINE_SECONDS = 30.0
TIMEOUT_SECONDS = 10.0
DRIFT_MS_MAX = 500.0


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The time limits of a client, its name, and its callback for a clock that drifts."""

    clock: Clock
    name: str
    deadline: float = DEADLINE_SECONDS
    timeout: float = TIMEOUT_SECONDS
    on_drift: Callable[[float], None] | None = None
    drift_ms_max: float = DRIFT_MS_MAX
    # Whether the client may use brokers that it was not given, when other brokers recommend them.
    follow: bool = True

    def hello(self, *, role: str, topic: str) -> carrier.Hello:
        """The first frame of every session."""
        return carrier.Hello(
            protocol=PROTOCOL,
            sdk=f"dejaq-python {package_version()}",
            client=self.name,
            clock=self.clock.identity,
            # A client that does not follow recommendations sends no role, so that it gets none.
            role=role if self.follow else "",
            topic=topic,
        )
