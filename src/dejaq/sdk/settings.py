"""What a client is told once and every part of it goes by."""

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
    """How patient a client is, how it is called and whom it tells about a clock that drifts."""

    clock: Clock
    name: str
    deadline: float = DEADLINE_SECONDS
    timeout: float = TIMEOUT_SECONDS
    on_drift: Callable[[float], None] | None = None
    drift_ms_max: float = DRIFT_MS_MAX
    # Whether brokers that were not named may be used, as the others recommend.
    follow: bool = True

    def hello(self, *, role: str, topic: str) -> carrier.Hello:
        """The first frame of every session."""
        return carrier.Hello(
            protocol=PROTOCOL,
            sdk=f"dejaq-python {package_version()}",
            client=self.name,
            clock=self.clock.identity,
            # Who follows no advice is to get none.
            role=role if self.follow else "",
            topic=topic,
        )
