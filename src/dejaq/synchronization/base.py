"""The synchronization contract: small records that every broker of a cluster sees in the same order.

Keys are text, relative to the cluster; values are opaque. Every change takes the next *revision* of one sequence.
A record's `token` is the revision of its creation: a member that created it later has the larger one, so it fences the
earlier holder of the key. What two brokers believe about each other is only a hint: the storage decides about messages.

A *member* is a broker that keeps a promise to the service alive. Its bound records vanish when the promise is not
renewed for `ttl` seconds. By its own monotonic clock a member knows an earlier time, `serving_until`, up to which
nobody else can have seen it vanish; behind that time it must not act as a member.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Protocol

# Below this, the death of a leader of the service would look like the death of a member.
TTL_SECONDS_MIN = 2.0
TTL_SECONDS_DEFAULT = 5.0


@dataclass(frozen=True, slots=True)
class Record:
    """One record: `token` is the revision of its creation, `revision` that of its last change."""

    key: str
    value: bytes
    token: int
    revision: int


@dataclass(frozen=True, slots=True)
class RecordChange:
    """What a watch reports of one key: the record as it is now, or None if it was removed."""

    key: str
    record: Record | None


class Synchronization(Protocol):
    """One broker's place in the synchronization service.

    Calls raise SYNCHRONIZATION_FAILED when the service does not answer in time; whether a change was made is then
    unknown, and `get` shows it. A `put` raises SYNCHRONIZATION_FULL, at once and with nothing written, while the
    service has no space; everything else continues. All methods are safe to call concurrently from one event loop.
    """

    @property
    def name(self) -> str:
        """Which service this is, for people."""

    @property
    def failure(self) -> str | None:
        """What is wrong with the membership or the service, or None."""

    @property
    def full(self) -> str | None:
        """Why records cannot be written although the membership holds, or None; a `put` that succeeds ends it."""

    async def open(self) -> None:
        """Become a member, and stay one until `close`; raises SYNCHRONIZATION_FAILED or CLUSTER_REFUSED."""

    async def close(self) -> None:
        """Leave: the bound records are gone at once."""

    def serving_until(self) -> float:
        """The monotonic time up to which nobody can have seen this member vanish; it grows while renewing works.

        A member that was away too long becomes one again by itself. Its bound records come back under new tokens,
        except those that were put with `comes_back=False`.
        """

    async def get(self, key: str) -> Record | None:
        """The record, as every member sees it now."""

    async def under(self, prefix: str) -> list[Record]:
        """The records whose keys begin with `prefix`, by key, as of one revision."""

    async def put(
        self, key: str, value: bytes, *, expected: int | None = None, bound: bool = False, comes_back: bool = True
    ) -> Record | None:
        """Write a record and give it; None, with nothing written, when `expected` does not hold.

        `expected` is the revision the record must have, 0 for one that must not be there, None for any. A bound
        record belongs to this member alone and goes with it. With `comes_back=False` a bound record that went with a
        membership that expired is not written again: another member may have created its own since.
        """

    async def put_bound(self, values: Mapping[str, bytes]) -> None:
        """Write bound records, all or none, as one change: at most 64, and far fewer bytes than the service takes."""

    async def remove(self, key: str, *, expected: int | None = None) -> bool:
        """Remove a record; False when it is not there or has another revision than `expected`."""

    def watch(self, prefix: str) -> AsyncIterator[list[RecordChange]]:
        """First every record under `prefix`, then every change in order, without end and without a gap.

        During an outage of the service, the watch waits. If the service has removed the changes meanwhile, the watch
        reports the differences to the state that it reported before.
        """
