"""One run of R2: a broker under load on a disk whose power is cut several times, and the checks after a full drain."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import dejaq
from dejaq.journal.names import SEGMENT_SUFFIX, named_files
from dejaq.journal.segment import read_segment
from dejaq.journal.verification import verify
from dejaq.testing.history.history import check_ledger
from dejaq.testing.history.ledger import WorkloadVerdict
from dejaq.testing.history.workload import Load, Workload
from dejaq.testing.power.disk import PowerDisk
from dejaq.testing.servers.process import BrokerExited, BrokerProcess
from dejaq.testing.waiting import eventually

CUTS = 3
# A cut falls on one of so many changes of the disk behind a moment of the load, or behind the begin of a start.
CHANGES_UNDER_LOAD, CHANGES_AT_START = 60, 150
# A start is cut off as often as this.
CUT_STARTS = 0.4
MESSAGES_BEFORE_CUT = 200
AFTER_CUT_SECONDS = 1.0
# A broker that needs no disk for its answer has so long for it.
ANSWER_SECONDS = 30.0
LATER_TS = 1_900_000_000_000
# Small files of the log, and tables that are written often: a run of seconds has everything that a long one has.
SMALL_LOG = (
    "from dejaq import limits; limits.COMMIT_LOG_FILE_BYTES = 32 * 1024; limits.COMMIT_LOG_FLUSH_BYTES = 64 * 1024"
)


@dataclass(frozen=True, slots=True)
class PowerRun:
    """What one run found; `faults` are sentences."""

    verdict: WorkloadVerdict
    cuts: int
    faults: list[str]


class LaterMessages:
    """Messages that are not due: they are created, moved and cancelled one at a time, and all of them are still there
    at the end, at the time that was acknowledged last, or at that of a call whose outcome is unknown.
    """

    def __init__(self, client: dejaq.Client, chance: random.Random) -> None:
        self._client = client
        self._chance = chance
        # The times that each may have; None: it may be gone.
        self._times: dict[str, set[int | None]] = {}

    async def change(self, finished: asyncio.Future[WorkloadVerdict]) -> None:
        """Change messages until the load is finished."""
        await self._client.create_topic("later", buckets=4)
        async with self._client.producer("later", group="billing") as producer:
            while not finished.done():
                name = f"later-{len(self._times)}"
                ts = LATER_TS + self._chance.randrange(30 * 86_400_000)
                # A send whose outcome is unknown ends the run: with its deadline, none should be.
                await producer.send(b"x" * self._chance.choice((10, 3_000)), at=ts, id=name)
                self._times[name] = {ts}
                await self._change_one(producer, self._chance.choice(list(self._times)))

    async def _change_one(self, producer: dejaq.Producer, name: str) -> None:
        ts = LATER_TS + self._chance.randrange(30 * 86_400_000) if self._chance.random() < 0.7 else None
        before = self._times[name]
        if None in before:
            return
        try:
            if ts is None:
                await producer.cancel(name)
            else:
                await producer.move(name, at=ts)
        except (dejaq.Unavailable, dejaq.Indefinite):
            self._times[name] = before | {ts}
        else:
            self._times[name] = {ts}

    async def faults(self) -> list[str]:
        """What differs from what was acknowledged."""
        found = {message.id: message.ts async for page in self._client.browse("later") for message in page}
        wrong = {name: (found.get(name), times) for name, times in self._times.items() if found.get(name) not in times}
        strange = set(found) - set(self._times)
        counted = await self._client.count("later")
        return [
            *(f"{name} is at {at}, and should be at one of {times}" for name, (at, times) in wrong.items()),
            *(f"{name} was never created" for name in strange),
            *([f"{counted} counted, {len(found)} found"] if counted != len(found) else []),
        ]


def journal_faults(directory: Path, topic: str, acknowledged: int, kinds: Sequence[str]) -> list[str]:
    """The signed segments are whole, and have one event of each of these kinds of every message of a topic."""
    faults = [str(finding) for finding in verify(directory).findings]
    if faults:
        return faults
    rows = [
        row
        for name in named_files(directory, SEGMENT_SUFFIX)
        for row in read_segment(directory / name.segment).select(["kind", "topic", "id"]).to_pylist()
    ]
    for kind in kinds:
        ids = Counter(row["id"] for row in rows if row["topic"] == topic and row["kind"] == kind)
        if len(ids) != acknowledged or ids.total() != acknowledged:
            faults.append(f"the journal has {ids.total()} events '{kind}' of {len(ids)} of {acknowledged} messages")
    return faults


@asynccontextmanager
async def broker_on_disk(
    path: Path, seed: int, *, unsynced: Sequence[str] = (), prelude: str = "", sizes: str = SMALL_LOG
) -> AsyncIterator[tuple[PowerDisk, BrokerProcess]]:
    """A broker, not started yet, whose data directory does not exist yet, on a disk whose power can be cut."""
    async with PowerDisk(path, seed=seed, unsynced=unsynced) as disk:
        broker = BrokerProcess(path / "lib" / "data", prelude=f"{sizes}\n{prelude}")
        try:
            yield disk, broker
        except BaseException as error:
            error.add_note(f"the broker's log ends:\n{broker.log()[-4_000:]}")
            raise
        finally:
            await asyncio.to_thread(broker.close)


async def start_through_cuts(disk: PowerDisk, broker: BrokerProcess, chance: random.Random) -> int:
    """Start the broker; some starts are cut off. Returns the number of these cuts."""
    cuts = 0
    while chance.random() < CUT_STARTS:
        broker.start()
        await disk.cut(after=chance.randrange(CHANGES_AT_START))
        await disk.restore(broker, keep_some=chance.random() < 0.5)
        cuts += 1
    broker.start()
    await broker.ready()
    return cuts


async def _sent(workload: Workload, running: asyncio.Task[WorkloadVerdict], due: int) -> None:
    """Wait until so many messages are acknowledged; raises what ended the load before."""

    def sent() -> bool:
        if running.done():
            running.result()
        return workload.acknowledged >= due

    await eventually(sent, within=60, what=f"{due} messages are sent", poll=0.001)


async def run_with_cuts(
    path: Path, seed: int, *, messages: int, unsynced: Sequence[str] = (), prelude: str = ""
) -> PowerRun:
    """One run. Raises BrokerExited when the broker refuses what a cut has left."""
    chance = random.Random(seed)
    async with broker_on_disk(path, seed, unsynced=unsynced, prelude=prelude) as (disk, broker):
        cuts = await start_through_cuts(disk, broker, chance)
        async with dejaq.connect(broker.url, deadline=60) as client:
            workload = Workload(client, "mail", Load(messages=messages, lease_seconds=0.8), seed=seed)
            later = LaterMessages(client, chance)
            running = asyncio.create_task(workload.run())
            changing = asyncio.create_task(later.change(running))
            try:
                for cut in range(CUTS):
                    due = round((cut + chance.random()) * messages / (CUTS + 1))
                    await _sent(workload, running, due)
                    await disk.cut(after=chance.randrange(CHANGES_UNDER_LOAD))
                    await disk.restore(broker, keep_some=chance.random() < 0.5)
                    cuts += 1 + await start_through_cuts(disk, broker, chance)
                verdict = await running
                await changing
            finally:
                running.cancel()
                changing.cancel()
                await asyncio.gather(running, changing, return_exceptions=True)
            faults = [*map(str, verdict.findings), *map(str, check_ledger(workload.ledger, workload.left))]
            faults += await later.faults()
        broker.terminate()
        await broker.exited()
        journal = path / "lib" / "data" / "journal"
        faults += await asyncio.to_thread(journal_faults, journal, "mail", verdict.acknowledged, ("created", "deleted"))
    return PowerRun(verdict, cuts, faults)


async def faults_after_one_cut(
    path: Path,
    seed: int,
    *,
    segments: int = 0,
    unsynced: Sequence[str] = (),
    prelude: str = "",
    answers_without_disk: bool = False,
) -> list[str]:
    """What is wrong after a power cut that leaves nothing but what was synced: a broker without one sync must fail.

    The cut comes when the journal has so many `segments`. A broker that `answers_without_disk` writes no tables: a cut
    while RocksDB begins one would hold the whole process, and with it the wrong answer.
    """
    sizes, seconds = ("", ANSWER_SECONDS) if answers_without_disk else (SMALL_LOG, AFTER_CUT_SECONDS)
    async with broker_on_disk(path, seed, unsynced=unsynced, prelude=prelude, sizes=sizes) as (disk, broker):
        broker.start()
        await broker.ready()
        journal = path / "lib" / "data" / "journal"
        hasty = dejaq.connect(broker.url, deadline=seconds, timeout=seconds)
        async with dejaq.connect(broker.url) as client, hasty:
            await client.create_topic("later", buckets=4)
            async with client.producer("later") as producer, hasty.producer("later") as last:
                sent = await _send_some(producer, journal, segments)
                await disk.cut()
                # No disk answers any more, so this one must not be acknowledged.
                with suppress(dejaq.Unavailable, dejaq.Indefinite):
                    sent.add(await last.send(b"x", delay=3_600))
        await disk.restore(broker)
        broker.start()
        try:
            await broker.ready()
        except BrokerExited as refused:
            return [str(refused)]
        async with dejaq.connect(broker.url) as client:
            try:
                found = {message.id async for page in client.browse("later") for message in page}
            except dejaq.DejaqError as refused:
                return [str(refused)]
        broker.terminate()
        await broker.exited()
        faults = [f"{len(sent)} acknowledged, {len(found)} found"] if found != sent else []
        return faults + await asyncio.to_thread(journal_faults, journal, "later", len(sent), ("created",))


async def _send_some(producer: dejaq.Producer, journal: Path, segments: int) -> set[str]:
    """Send until tables were written several times and the journal has so many segments; the ids."""
    sent: set[str] = set()
    chance = random.Random(1)

    async def enough() -> bool:
        bodies = [chance.randbytes(3_000) for _ in range(20)]
        sent.update((await producer.send_batch(bodies, delay=3_600)).ids)
        signed = await asyncio.to_thread(lambda: len(list(journal.glob("*.json"))))
        return len(sent) >= MESSAGES_BEFORE_CUT and signed >= segments

    await eventually(enough, within=60, what=f"the journal has {segments} segments", poll=0.02)
    return sent
