"""The interface of a system under test: a server process, and a client for the common work."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from bench.harness.figures import Figures
from bench.harness.payload import Batch
from bench.harness.tally import Tally

ALL_BENCHES = frozenset({"throughput", "accuracy", "depth", "burst", "mutate", "latency", "send_loop"})
LOG_BENCHES = frozenset({"log"})
# The workloads of clients that choose the ids, and those that every such system can do.
OWN_IDS = frozenset({"reminders", "next_minute", "falling_due", "single_sends", "by_id"})


class Server(Protocol):
    """A real server on loopback with data of its own; it is a descendant of the harness's process."""

    address: str

    def start(self) -> None:
        """Start with the existing data, and return when the server accepts connections."""

    def stop(self) -> None:
        """Stop and keep the data."""

    @property
    def pid(self) -> int:
        """The main process of the server."""

    @property
    def pids(self) -> Sequence[int]:
        """The processes whose CPU time and memory are measured, including children."""

    def fsyncs(self) -> int | None:
        """How often the server has synced so far, when it can say so."""


class Client(Protocol):
    """The connection of one client process to the server. A client is only asked for work that its system supports."""

    async def open(self, *, produces: bool) -> None:
        """Connect as a producer or as a consumer, so that the measured time contains only the work."""

    async def close(self) -> None:
        """Disconnect."""

    async def create(self, batches: Iterable[Batch]) -> int:
        """Create all messages, pipelined, and return how many once all are acknowledged."""

    async def consume(self, tally: Tally) -> None:
        """Lease due messages, record them in the tally, delete them; until the tally is complete or
        this is cancelled.
        """


class Changer(Client, Protocol):
    """A client that also sends single messages and changes pending messages, with many calls in flight."""

    async def send(self, body: bytes) -> None:
        """Create one message that is due at once."""

    async def create_known(self, batches: Iterable[Batch]) -> list[str]:
        """Create and return the ids under which messages can be changed."""

    async def cancel(self, ids: Sequence[str]) -> None:
        """Remove pending messages."""

    async def move(self, ids: Sequence[str], due_ms: int) -> None:
        """Move pending messages to another time."""

    async def edit(self, ids: Sequence[str], bodies: Sequence[bytes]) -> None:
        """Replace the bodies of pending messages."""


class Refused(Exception):
    """The server did not accept a message."""


class SingleSender(Protocol):
    """Many producers over a few connections, each sending one message per call."""

    async def open(self, *, connections: int, producers: int) -> None:
        """Connect; the producers are spread evenly over the connections."""

    async def send(self, producer: int, message_id: str, body: bytes, due_ms: int) -> None:
        """Create one message and return when it is acknowledged; raises Refused."""

    async def close(self) -> None:
        """Disconnect."""


class ChangerById(Protocol):
    """A client that reads and changes pending messages by their ids; several calls at one time."""

    async def open(self) -> None:
        """Connect."""

    async def get(self, ids: Sequence[str]) -> int:
        """Read the messages; how many were found."""

    async def move(self, ids: Sequence[str], due_ms: Sequence[int]) -> None:
        """Give each message another time."""

    async def edit(self, ids: Sequence[str], bodies: Sequence[bytes]) -> None:
        """Give each message another body."""

    async def cancel(self, ids: Sequence[str]) -> None:
        """Remove the messages."""

    async def close(self) -> None:
        """Disconnect."""


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
    # Creates the topic with a number of buckets, for systems that have buckets. It runs in a process of its own.
    buckets: Callable[[str, int], Coroutine[Any, Any, Figures]] | None = None
