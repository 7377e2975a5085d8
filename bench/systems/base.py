"""What a system under test is: a server process, and a client that does the common work with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bench.harness.payload import Batch
from bench.harness.tally import Tally

ALL_BENCHES = frozenset({"throughput", "accuracy", "depth", "burst", "mutate", "latency", "send_loop"})


class Server(Protocol):
    """A real server on loopback with data of its own; it lives in the harness's process tree."""

    address: str

    def start(self) -> None:
        """Start, on the data that is there, and return when it accepts connections."""

    def stop(self) -> None:
        """Stop and keep the data."""

    @property
    def pid(self) -> int:
        """The process whose CPU and memory count, children included."""

    def fsyncs(self) -> int | None:
        """How often it synced so far, where it says so."""


class Client(Protocol):
    """One client process's way to the server. What a system cannot do it is never asked for."""

    async def open(self, *, produces: bool) -> None:
        """Connect as a producer or as a consumer, so that the clock starts with the work."""

    async def close(self) -> None:
        """Disconnect."""

    async def create(self, batches: Iterable[Batch]) -> int:
        """Create everything, pipelined, and return how many once all is acknowledged."""

    async def consume(self, tally: Tally) -> None:
        """Take what is due, tell the tally, delete it; until the tally is done or this is cancelled."""


class Changer(Client, Protocol):
    """A client that also sends one by one and changes what is pending, with many calls in flight."""

    async def send(self, body: bytes) -> None:
        """Create one message that is due at once."""

    async def create_known(self, batches: Iterable[Batch]) -> list[str]:
        """Create and return the ids under which messages can be changed."""

    async def cancel(self, ids: Sequence[str]) -> None:
        """Remove pending messages."""

    async def move(self, ids: Sequence[str], due_ms: int) -> None:
        """Give pending messages another time."""

    async def edit(self, ids: Sequence[str], bodies: Sequence[bytes]) -> None:
        """Give pending messages other bodies."""


@dataclass(frozen=True, slots=True)
class System:
    """One row of the comparison."""

    name: str
    durable: bool
    server: Callable[[Path], Server]
    client: Callable[[str], Client]
    version: Callable[[], str]
    missing: Callable[[], str | None]
    benches: frozenset[str]
    settings: Mapping[str, str] = field(default_factory=dict)
    changes: tuple[str, ...] = ()
