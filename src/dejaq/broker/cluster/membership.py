"""The members of the cluster: this broker's own record, which it keeps up to date, and the records of the others."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence

from dejaq.broker.cluster.member import Member, Process
from dejaq.broker.cluster.offsets import Offsets
from dejaq.broker.doctor import Doctor
from dejaq.config import BrokerConfig, join_address, split_address
from dejaq.errors import ClusterRefused, DejaqError
from dejaq.protocol.version import package_version
from dejaq.storage.base import Storage
from dejaq.synchronization.base import Record, RecordChange, Synchronization
from dejaq.synchronization.keys import MEMBERS
from dejaq.timekeeper.clock import Clock

log = logging.getLogger(__name__)

# Every change of a member's record takes space in etcd, so a record without news is written this seldom.
HEARTBEAT_SECONDS = 30.0
RETRY_SECONDS = 0.2
CLUSTER = "cluster"


class Membership:
    """The brokers of the cluster, as this broker knows them."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        synchronization: Synchronization,
        storage: Storage,
        clock: Clock,
        doctor: Doctor,
        offsets: Offsets,
        session_count: Callable[[], int],
    ) -> None:
        self.own = config.name
        self.members: dict[str, Member] = {}
        self._config = config
        self._synchronization = synchronization
        self._storage = storage
        self._clock = clock
        self._doctor = doctor
        self._offsets = offsets
        self._session_count = session_count
        self._key = MEMBERS + config.name
        self._address = ""
        self._grpc_address = ""
        self._peer_address = ""
        self._started_ms = clock.now_ms()
        self._process = Process.here(clock.identity)
        self._record: Record | None = None
        # This broker's record as it was last published, and when.
        self._published: Member | None = None
        self._published_at = 0.0

    @property
    def alone(self) -> bool:
        """Whether this broker knows no other broker."""
        return len(self.members) <= 1

    @property
    def token(self) -> int:
        """A number that is smaller the earlier this broker joined; 0 while it has no record."""
        return self._record.token if self._record is not None else 0

    @property
    def others(self) -> dict[str, Member]:
        """Every member except this broker, by id."""
        return {broker: member for broker, member in self.members.items() if broker != self.own}

    async def join(self, *, address: str, grpc_address: str, peer_address: str) -> None:
        """Publish this broker as a member; raises CLUSTER_REFUSED when the cluster does not accept it."""
        self._address = (self._config.advertise or address) if address else ""
        self._grpc_address = self._advertised(grpc_address)
        self._peer_address = self._advertised(peer_address)
        await self._check_storage()
        await self._take_name()
        others = [record for record in await self._synchronization.under(MEMBERS) if record.key != self._key]
        if others and not self._storage.capabilities.shared:
            raise ClusterRefused(
                f"cluster {self._config.cluster!r} has other brokers, and the storage "
                f"{self._storage.capabilities.name!r} cannot be shared with them; use one that can, or another cluster"
            )

    def _advertised(self, address: str) -> str:
        """An address of this broker as others reach it: with the advertised host."""
        if not address or self._config.advertise is None:
            return address
        host, _ = split_address(self._config.advertise, key="advertise")
        return join_address(host, split_address(address)[1])

    async def _check_storage(self) -> None:
        """All brokers of one cluster must keep their messages in one storage."""
        # Optional: a storage that others can use too has an identity that is kept in it.
        identity = self._storage.identity
        value = json.dumps({"storage": identity}).encode()
        record = await self._synchronization.put(CLUSTER, value, expected=0) or await self._synchronization.get(CLUSTER)
        known = json.loads(record.value)["storage"] if record is not None else identity
        if identity and known and known != identity:
            raise ClusterRefused(
                f"cluster {self._config.cluster!r} keeps its messages in another storage ({known}, not {identity}); "
                "use that storage, or give this cluster another name with --cluster"
            )

    async def _take_name(self) -> None:
        """Write this broker's record, unless a live broker has the same name."""
        first: Record | None = None
        until = self._clock.monotonic() + self._config.member_ttl + 2
        while True:
            self._record = await self._synchronization.put(self._key, self._self().encode(), expected=0, bound=True)
            if self._record is not None:
                return
            found = await self._synchronization.get(self._key)
            if found is None:
                continue
            other = Member.decode(found.value, found.token)
            if other.process.surely_dead(self._process):
                await self._synchronization.remove(self._key, expected=found.revision)
                continue
            # A record that changes belongs to a live broker; a record that does not change expires.
            first = first or found
            if found.revision != first.revision or self._clock.monotonic() > until:
                raise ClusterRefused(
                    f"a broker named {self.own!r} already serves cluster {self._config.cluster!r} at "
                    f"{other.shown_address}; give this one another name with --broker"
                )
            await self._clock.sleep(RETRY_SECONDS)

    def _self(self) -> Member:
        samples = [sample for broker in self.members if (sample := self._offsets.best(broker)) is not None]
        worst = max((sample.round_trip_ms for sample in samples), default=0.0)
        return Member(
            id=self.own,
            address=self._address,
            grpc_address=self._grpc_address,
            peer_address=self._peer_address,
            version=package_version(),
            storage=self._storage.capabilities.label,
            started_ms=self._started_ms,
            seen_ms=self._clock.now_ms(),
            sessions=self._session_count(),
            latency_ms=round(worst / 2, 3),
            drift_ms=round(self._doctor.drift_ms, 3),
            draining=self._doctor.draining,
            ready=self._doctor.ready,
            degradations=tuple(s for name, s in self._doctor.degradations.items() if name != "draining"),
            process=self._process,
        )

    def records_changed(self, changes: Sequence[RecordChange]) -> list[str]:
        """Read changed records; returns the ids of the brokers that have published one."""
        published: list[str] = []
        for change in changes:
            broker = change.key.removeprefix(MEMBERS)
            if change.record is None:
                if broker == self.own:
                    self._record = None
                if self.members.pop(broker, None) is not None and broker != self.own:
                    log.info("broker %s has left the cluster", broker)
                continue
            if broker not in self.members and broker != self.own:
                log.info("broker %s is in the cluster", broker)
            self.members[broker] = member = Member.decode(change.record.value, change.record.token)
            published.append(broker)
            if broker == self.own and member.process == self._process:
                # After the membership expired, the record was written again under another token.
                self._record = change.record
        return published

    async def publish_news(self) -> None:
        """Publish this broker's record when it has changed, and rarely when it has not.

        While the synchronization is full, each try finds out whether it accepts records again.
        """
        same = self._published is not None and not self._published.differs(self._self())
        quiet = same and self._record is not None and self._synchronization.full is None
        if not quiet or self._clock.monotonic() >= self._published_at + HEARTBEAT_SECONDS:
            await self._publish()

    async def publish(self) -> None:
        """Publish this broker's record now, if that is possible."""
        try:
            await self._publish()
        except DejaqError as error:
            log.info("the record of this broker was not published: %s", error)

    async def _publish(self) -> None:
        for _ in range(2):
            expected = self._record.revision if self._record is not None else 0
            own = self._self()
            record = await self._synchronization.put(self._key, own.encode(), expected=expected, bound=True)
            if record is not None:
                self._record, self._published, self._published_at = record, own, self._clock.monotonic()
                return
            # After an interruption the synchronization wrote the record again by itself.
            found = await self._synchronization.get(self._key)
            if found is not None and Member.decode(found.value, 0).process != self._process:
                raise ClusterRefused(f"another process has taken the place of broker {self.own!r}")
            self._record = found
