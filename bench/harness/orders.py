"""What the harness asks of a client process, and what comes back. All of it crosses a pipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bench.harness.payload import Load


@dataclass(frozen=True, slots=True)
class Produce:
    """Create a load. `ready` makes the messages before the clock starts; `seconds_max` ends a load that is too slow."""

    load: Load
    ready: bool = True
    seconds_max: float | None = None


@dataclass(frozen=True, slots=True)
class Consume:
    """Take and delete until `target` messages went to all consumers together, or `seconds_max` passed."""

    target: int
    seconds_max: float
    timed: bool = False
    opened: bool = True


@dataclass(frozen=True, slots=True)
class OneByOne:
    """Send messages that are due now, each after the last one arrived."""

    count: int
    seconds_max: float


@dataclass(frozen=True, slots=True)
class SendLoop:
    """`await send(...)` in a loop in so many tasks."""

    count: int
    tasks: int
    body_bytes: int = 100


@dataclass(frozen=True, slots=True)
class Mutate:
    """Change pending messages: create as many as are changed, then `kind` in batches, so many calls in flight."""

    kind: Literal["cancel", "move", "edit"]
    count: int
    batch: int
    in_flight: int
    due_ms: int


Order = Produce | Consume | OneByOne | SendLoop | Mutate


@dataclass(frozen=True, slots=True)
class Done:
    """What a client process did, on the wall clock that all processes share."""

    count: int
    start_ns: int
    end_ns: int
    first_ns: int = 0
    late_us: bytes = b""
