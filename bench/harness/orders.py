"""The orders to a client process, and its results. All of them are sent through a pipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bench.harness.payload import Load


@dataclass(frozen=True, slots=True)
class Produce:
    """Create a load.

    `ready` creates the messages before the clock starts; `seconds_max` ends a load that is too slow.
    """

    load: Load
    ready: bool = True
    seconds_max: float | None = None


@dataclass(frozen=True, slots=True)
class Consume:
    """Lease and delete until all consumers together have `target` messages, or `seconds_max` passed."""

    target: int
    seconds_max: float
    timed: bool = False
    opened: bool = True


@dataclass(frozen=True, slots=True)
class OneByOne:
    """Send messages that are due now, each after the previous one was delivered."""

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
    """Change pending messages: create as many messages as are changed, then `kind` in batches, so
    many calls in flight.
    """

    kind: Literal["cancel", "move", "edit"]
    count: int
    batch: int
    in_flight: int
    due_ms: int


@dataclass(frozen=True, slots=True)
class SingleSends:
    """Send a load with one message per call from many producers that share connections, in one of several processes."""

    load: Load
    process: int
    processes: int
    connections: int
    producers: int
    seconds_max: float


ChangeKind = Literal["get", "move", "edit", "cancel"]
# Cancel is last: the others need the messages.
CHANGES_BY_ID: tuple[ChangeKind, ...] = ("get", "move", "edit", "cancel")


@dataclass(frozen=True, slots=True)
class ChangeById:
    """Change messages of the pending load, drawn at random from `population` of its rows from `first` on."""

    kind: ChangeKind
    count: int
    batch: int
    in_flight: int
    first: int
    population: int
    seconds_max: float


Order = Produce | Consume | OneByOne | SendLoop | Mutate | SingleSends | ChangeById


@dataclass(frozen=True, slots=True)
class Done:
    """The results of a client process, with times of the wall clock that all processes share."""

    count: int
    start_ns: int
    end_ns: int
    first_ns: int = 0
    late_us: bytes = b""
    # Calls that the server refused.
    refused: int = 0
