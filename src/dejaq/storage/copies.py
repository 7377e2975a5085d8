"""The servers that have copies of what a store keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from dejaq.domain.topic import Topic


@dataclass(frozen=True, slots=True)
class Standby:
    """A server that follows another one: how much a commit waits for it, and how far behind it is."""

    name: str
    # `sync` and `quorum`: a commit waits for it, or for some of these; `potential`: it takes the place of a `sync` one
    # that fails; `async`: no commit waits for it; `unknown`: the user of the broker may not see it.
    state: str
    # None when the user of the broker may not see it.
    lag_bytes: int | None


@dataclass(frozen=True, slots=True)
class Copies:
    """One server of a store, how many buckets of a topic it has, and its standbys.

    A change is acknowledged when the server and `confirmed` of its standbys have it on disk.
    """

    shard: str
    buckets: int
    confirmed: int
    standbys: tuple[Standby, ...]


@runtime_checkable
class Replicates(Protocol):
    """A storage whose servers may have standbys."""

    async def copies(self, topic: Topic) -> list[Copies]:
        """The servers that have buckets of the topic."""
