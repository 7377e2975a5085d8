"""Watches the broker's health: says what is wrong, refuses what cannot be done, and brings the storage back.

| degradation | refuses | ends by itself when |
|---|---|---|
| storage | everything; sessions are ended so that clients begin again | `recover` succeeds, which damage prevents |
| synchronization | everything; sessions are ended so that clients go to another broker | the membership is renewed |
| synchronization_full | creating and deleting topics; the rest works | a record can be written again |
| drift | the same; also while a clock that jumped is not yet compared | the clock is near the others' again |
| memory | creates, with OVERLOADED | memory is below the limit again |
| disk | creates, with OVERLOADED | enough of the disk is free again |
| clock | nothing: it is a warning | a minute after the jump |
| journal | nothing: what happened waits in the store | the exporter gets through |
| event_loop | nothing: it is a warning | the loop answers in half the time of the limit |
| shards | what is on a shard of the storage that does not work | the shard works again |
| newer | topics of a kind that is not known here | the broker is upgraded |
| draining | everything but settling and transactions | never |
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from math import inf
from pathlib import Path

from dejaq.broker.disk_space import DiskSpace
from dejaq.broker.events import ClusterState, HealthListener, NoListener, SingleBroker
from dejaq.config import BrokerConfig
from dejaq.errors import Code, DejaqError, Indefinite, StoreError, Unavailable, error_of
from dejaq.storage.base import Storage
from dejaq.timekeeper.clock import Clock
from dejaq.timekeeper.drift import DriftMeter

log = logging.getLogger(__name__)

PERIOD_SECONDS = 0.25
BACKOFF_SECONDS_MIN = 0.1
# A storage that is back is to be used at once.
BACKOFF_SECONDS_MAX = 1.0
# A try that took long, because there is much to be read, is followed by a pause of so many times its duration.
PAUSE_PER_TRY = 4.0
# One that fails again so soon after it came back is tried after longer and longer pauses; no pause is longer than this.
RELAPSE_SECONDS = 60.0
RELAPSE_BACKOFF_SECONDS_MAX = 30.0
JUMP_SHOWN_SECONDS = 60.0
# With one of these nothing is served.
BLOCKING = frozenset({"storage", "synchronization", "drift"})
THROTTLED_MS = 500


def cannot_serve(error: StoreError) -> DejaqError:
    """The error that clients get for a fault of the store; they try again unless the store is damaged or too new."""
    if error.code not in (Code.STORE_FAILED, Code.STORE_LOCKED):
        return error
    return Unavailable(
        "the broker's storage does not work now; nothing was changed",
        code=error.code,
        details=error.message + (f"; {error.details}" if error.details else ""),
        throttled_ms=THROTTLED_MS,
    )


def resident_bytes() -> int:
    """The memory of this process, or 0 where the system does not report it."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


class Doctor:
    """The broker's degradations, each a sentence under its name."""

    def __init__(
        self,
        *,
        storage: Storage,
        clock: Clock,
        memory_bytes_max: int,
        drift_ms_max: int,
        read_memory: Callable[[], int] = resident_bytes,
        disk: DiskSpace | None = None,
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._drift = DriftMeter(clock)
        self._memory_bytes_max = memory_bytes_max
        self._drift_ms_max = drift_ms_max
        self._read_memory = read_memory
        self._disk = disk or DiskSpace(None, 0)
        self._degradations: dict[str, str] = {}
        self._jump_shown_until = 0.0
        self._was_blocked = False
        # As the clock may be used; and as other brokers have confirmed it, or as it was at the start.
        self._trusted_gap_ms = self._confirmed_gap_ms = self._drift.gap_ms()
        self._back_at = -inf
        self._relapses = 0
        self._look = asyncio.Event()
        # Why the storage does not work, while it does not.
        self._storage_code = Code.STORE_FAILED
        self.memory_bytes = 0
        self._cluster: ClusterState = SingleBroker()
        self._listener: HealthListener = NoListener()

    @classmethod
    def of(cls, config: BrokerConfig, storage: Storage, clock: Clock) -> Doctor:
        """The doctor of a broker with this configuration."""
        return cls(
            storage=storage,
            clock=clock,
            memory_bytes_max=config.memory_bytes_max,
            drift_ms_max=config.drift_ms_max,
            disk=DiskSpace(config.data, config.disk_free_min),
        )

    def connect(self, cluster: ClusterState, listener: HealthListener) -> None:
        """Read the state of `cluster` and report to `listener`; both are constructed after the doctor."""
        self._cluster = cluster
        self._listener = listener

    @property
    def degradations(self) -> dict[str, str]:
        """What is wrong now, by name; a storage that has just failed, too."""
        failure = self._storage.failure
        return ({} if failure is None else {"storage": failure}) | self._degradations

    @property
    def draining(self) -> bool:
        """Whether the broker is about to stop."""
        return "draining" in self._degradations

    @property
    def ready(self) -> bool:
        """Whether clients should come here."""
        return not (BLOCKING | {"draining"}) & self.degradations.keys()

    @property
    def drift_ms(self) -> float:
        """How far the wall clock has moved against the monotonic one since the start."""
        return self._drift.drift_ms()

    @property
    def clock_gap_ms(self) -> float:
        """Wall time less monotonic time, for `trust_clock`."""
        return self._drift.gap_ms()

    @property
    def clock_ahead_ms(self) -> int:
        """How far the wall clock was set forward since it was last known to be right; 0 when it was not."""
        return max(round(self._drift.gap_ms() - self._confirmed_gap_ms), 0)

    def trust_clock(self, gap_ms: float, *, confirmed: bool) -> None:
        """The clock may be used as it was when its gap to the monotonic one was this; by other brokers, or for want of
        them.
        """
        self._trusted_gap_ms = gap_ms
        if confirmed:
            self._confirmed_gap_ms = gap_ms

    def check_clock(self) -> None:
        """Raise CUT_OFF when this clock must not be used."""
        if self._strayed or "drift" in self._degradations:
            self.look()
            raise self._cut_off_error()

    def admit(self, command: str) -> None:
        """Raise the error that `command` must be refused with in the present state."""
        if not self._member:
            raise self._cut_off_error()
        if self._strayed:
            self.check_clock()
        if "storage" in self._degradations or self._storage.failure is not None:
            self.look()
            raise self._storage_error()
        if not self._degradations:
            return
        if "drift" in self._degradations:
            raise self._cut_off_error()
        if "draining" in self._degradations and command not in ("settle", "deletes", "extends", "transact"):
            raise error_of(Code.DRAINING)
        if command == "create" and (short := self._degradations.get("memory") or self._degradations.get("disk")):
            raise error_of(Code.OVERLOADED, short, throttled_ms=THROTTLED_MS)

    def confirm(self) -> None:
        """Raise INDEFINITE when what was just done may no longer be answered for: the membership ran out meanwhile."""
        if not self._member:
            raise Indefinite("the broker was cut off from its cluster before the answer")
        if self._strayed:
            self.look()
            raise Indefinite("the broker's clock jumped before the answer")

    @property
    def _strayed(self) -> bool:
        return abs(self._drift.gap_ms() - self._trusted_gap_ms) > self._cluster.clock_change_ms_max()

    @property
    def _member(self) -> bool:
        return self._clock.monotonic() < self._cluster.serving_until()

    def _cut_off_error(self) -> DejaqError:
        why = (
            self._degradations.get("synchronization")
            or self._degradations.get("drift")
            or self._cluster.cut_off_reason()
        )
        if why is None and self._strayed:
            why = "the clock has jumped and is being compared with those of the other brokers"
        return error_of(Code.CUT_OFF, details=why or "", throttled_ms=THROTTLED_MS)

    def _storage_error(self) -> DejaqError:
        code = Code.STORE_CORRUPT if self._storage.corrupt else self._storage_code
        return cannot_serve(StoreError(self._storage.failure or self._degradations.get("storage", ""), code=code))

    def report(self, name: str, sentence: str | None) -> None:
        """A part of the broker says what is wrong with it; None: nothing is."""
        if sentence is None:
            self._clear(name)
        else:
            self._set(name, sentence)

    def look(self) -> None:
        """Look at once: somebody met a fault."""
        self._look.set()

    async def start_draining(self) -> None:
        """Refuse new work from now on."""
        self._degradations["draining"] = "the broker is shutting down"
        await self._changed()

    async def run(self) -> None:
        """Examine the broker until cancelled."""
        healing: asyncio.Task[None] | None = None
        try:
            while True:
                self._look.clear()
                await self._examine_others()
                if healing is not None and healing.done():
                    # An error of the broker's own code is raised here, logged, and the doctor is started again.
                    ended, healing = healing, None
                    ended.result()
                failure = self._storage.failure
                if failure is not None and healing is None:
                    healing = asyncio.create_task(self._heal_storage(failure), name="recovery of the storage")
                await self._pause(PERIOD_SECONDS)
        finally:
            if healing is not None:
                healing.cancel()
                await asyncio.wait((healing,))

    async def _pause(self, seconds: float) -> None:
        tasks = [asyncio.ensure_future(self._clock.sleep(seconds)), asyncio.ensure_future(self._look.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    async def examine(self) -> None:
        """One examination; with a failed storage it lasts until the storage is back."""
        await self._examine_others()
        if self._storage.failure is not None:
            await self._heal_storage(self._storage.failure)

    async def _examine_others(self) -> None:
        """Examine everything but the storage, whose recovery may take long."""
        self._examine_clock()
        self._examine_memory()
        await self._examine_membership()
        await self._disk.look()
        self.report("disk", self._disk.shortage())

    def _examine_clock(self) -> None:
        jump = self._drift.jump_ms()
        if abs(jump) > self._drift_ms_max:
            self._set("clock", f"the clock jumped by {jump:+.0f} ms")
            self._jump_shown_until = self._clock.monotonic() + JUMP_SHOWN_SECONDS
            self._listener.clock_jumped()
        elif self._strayed:
            self._listener.clock_jumped()
        elif "clock" in self._degradations and self._clock.monotonic() >= self._jump_shown_until:
            self._clear("clock")

    def _examine_memory(self) -> None:
        self.memory_bytes = self._read_memory()
        if self._memory_bytes_max and self.memory_bytes > self._memory_bytes_max:
            self._set(
                "memory",
                f"{self.memory_bytes >> 20} MiB of memory are in use, over the limit of "
                f"{self._memory_bytes_max >> 20} MiB",
            )
        else:
            self._clear("memory")

    async def _examine_membership(self) -> None:
        if self._member:
            self._clear("synchronization")
        else:
            why = self._cluster.cut_off_reason() or "the membership could not be renewed"
            self._set("synchronization", f"cut off from the cluster: {why}")
        blocked = bool({"synchronization", "drift"} & self._degradations.keys())
        if blocked and not self._was_blocked:
            self._listener.cut_off(self._cut_off_error())
        if blocked != self._was_blocked:
            self._was_blocked = blocked
            await self._changed()

    async def _heal_storage(self, failure: str) -> None:
        self._set("storage", failure)
        self._storage_code = Code.STORE_FAILED
        await self._changed()
        self._listener.storage_failed(self._storage_error())
        relapsed = self._clock.monotonic() - self._back_at < RELAPSE_SECONDS
        self._relapses = self._relapses + 1 if relapsed else 0
        if self._relapses:
            await self._clock.sleep(min(BACKOFF_SECONDS_MIN * 2**self._relapses, RELAPSE_BACKOFF_SECONDS_MAX))
        backoff = BACKOFF_SECONDS_MIN
        while "storage" in self._degradations:
            began = self._clock.monotonic()
            try:
                await self._storage.recover(self._clock.now_ms())
                await self._listener.storage_recovered()
            except DejaqError as error:
                self._set("storage", str(error))
                self._storage_code = error.code if isinstance(error, StoreError) else Code.STORE_FAILED
                pause = max(backoff, PAUSE_PER_TRY * (self._clock.monotonic() - began))
                await self._clock.sleep(min(pause, RELAPSE_BACKOFF_SECONDS_MAX))
                backoff = min(backoff * 2, BACKOFF_SECONDS_MAX)
            else:
                self._clear("storage")
        self._back_at = self._clock.monotonic()
        await self._changed()

    def _set(self, name: str, sentence: str) -> None:
        if name not in self._degradations:
            log.warning("degraded: %s", sentence)
        self._degradations[name] = sentence

    def _clear(self, name: str) -> None:
        if self._degradations.pop(name, None) is not None:
            log.warning("no longer degraded: %s", name)

    async def _changed(self) -> None:
        await self._listener.readiness_changed()
