"""Which brokers use a shared storage: brokers of one cluster may, or one broker that has no cluster.

Each broker gives its connections to the storage a name that says which of the two it is. A broker that starts looks at
the names of the others. So a broker that is configured without the cluster is refused beside it.
"""

from __future__ import annotations

import secrets
from hashlib import blake2s

from dejaq.errors import ClusterRefused
from dejaq.storage.base import NamesUsers, Storage, innermost
from dejaq.timekeeper.clock import Clock

# A server notices within this time that the machine of a broker is gone.
WAIT_SECONDS = 15.0
LOOK_SECONDS = 0.5
_ALONE, _CLUSTER = "alone", "cluster"


class StorageUsers:
    """This broker among the users of its storage."""

    def __init__(self, *, storage: Storage, cluster: str, alone: bool, clock: Clock) -> None:
        self._storage = innermost(storage)
        self._cluster = cluster
        self._clock = clock
        self._alone = alone
        digest = blake2s(cluster.encode(), digest_size=6).hexdigest()
        self._prefix = f"dejaq {digest} "
        self._token = secrets.token_hex(4)

    def announce(self) -> None:
        """Name the connections of the storage, before it is opened."""
        if isinstance(self._storage, NamesUsers):
            self._storage.announce(f"{self._prefix}{_ALONE if self._alone else _CLUSTER} {self._token}")

    async def check(self) -> None:
        """Raise CLUSTER_REFUSED when brokers use the storage that do not belong to this broker's cluster."""
        until = self._clock.monotonic() + WAIT_SECONDS
        while others := await self._others():
            if self._clock.monotonic() >= until:
                raise ClusterRefused(self._refusal(others))
            await self._clock.sleep(LOOK_SECONDS)

    async def _others(self) -> list[str]:
        """The addresses of the brokers that may not use the storage together with this one."""
        if not isinstance(self._storage, NamesUsers):
            return []
        found: set[str] = set()
        for name, place in await self._storage.users(self._prefix):
            kind, _, token = name.removeprefix(self._prefix).partition(" ")
            if token != self._token and (self._alone or kind == _ALONE):
                found.add(place)
        return sorted(found)

    def _refusal(self, others: list[str]) -> str:
        places = ", ".join(others)
        if self._alone:
            return (
                f"other brokers (at {places}) use the storage of cluster {self._cluster!r}, and this one is set up "
                "without synchronization; start it with the --synchronization of the others, or stop them"
            )
        return (
            f"a broker without synchronization (at {places}) uses the storage of cluster {self._cluster!r}; stop it, "
            "or restart it with the --synchronization of this one"
        )
