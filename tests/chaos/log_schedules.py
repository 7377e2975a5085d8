"""R2: random schedules of a commit log on a simulated disk, and what must hold after every crash.

One schedule is a few lives of a log: records are appended in groups, written, synced and trimmed, files roll over, an
operation fails or the power is cut in the middle of any of them, and the next life recovers what is left.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from dejaq.errors import Code, DejaqError
from dejaq.storage.commit_log.operations import Operations
from dejaq.storage.commit_log.record import FrameAddress, frame_lengths
from dejaq.storage.commit_log.recovery import Recovery
from dejaq.storage.commit_log.writer import CommitLog
from dejaq.testing.power.content import PAGE_BYTES, SECTOR_BYTES
from dejaq.testing.simulated_disk import PowerCut, SimulatedDisk

LIVES_MAX, STEPS_MAX = 4, 10
# Pages of the usual size, and small ones, of which a group of small records has many.
PAGES = ((PAGE_BYTES, SECTOR_BYTES), (128, 16), (64, 32))
FILE_BYTES = (150, 400, 1_000_000)


@dataclass(slots=True)
class Entry:
    """What was appended under a sequence."""

    epoch: int
    operations: bytes
    frames: list[bytes]
    addresses: list[FrameAddress]


@dataclass(slots=True)
class Known:
    """What the owner of the log knows, outside the simulated disk."""

    entries: dict[int, Entry] = field(default_factory=dict)
    acknowledged: int = 0
    applied: int = 0
    watermark: int = 0
    epoch: int = 0
    begin: int = 1
    # Records of which somebody needs a frame; their files must stay.
    needed: set[int] = field(default_factory=set)


class Schedule:
    """One schedule; `run` raises AssertionError when the log breaks a promise."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = Random(seed)
        page, sector = chance.choice(PAGES)
        self.disk = SimulatedDisk(chance, page_bytes=page, sector_bytes=sector)
        self.disk.before = self._before
        self.file_bytes = chance.choice(FILE_BYTES)
        self.known = Known()
        self.until_fault = 0
        self.fault: type[Exception] = PowerCut

    def run(self) -> None:
        lives = self.chance.randrange(1, LIVES_MAX + 1)
        while lives:
            self._plan_fault()
            try:
                log = self._recover()
                if log is None:
                    return
                self._live(log)
                lives -= 1
            except PowerCut:
                lives -= 1
            except DejaqError as error:
                assert error.code is Code.STORE_FAILED, f"refused without a reason: {error} {error.details}"
                # Opening failed; the next try has a disk that works, or a crash before it.
            if self.chance.random() < 0.8:
                self.until_fault = 0
                self.disk.crash()
                if lives and self.chance.random() < 0.1:
                    self._damage()
                    return
        self.until_fault = 0
        self._recover()

    # Faults

    def _plan_fault(self) -> None:
        self.until_fault = self.chance.randrange(1, 30) if self.chance.random() < 0.8 else 0
        self.fault = PowerCut if self.chance.random() < 0.6 else OSError

    def _before(self, operation: str) -> None:
        if self.until_fault:
            self.until_fault -= 1
            if not self.until_fault:
                if self.fault is PowerCut:
                    raise PowerCut(operation)
                number = errno.EIO if self.chance.random() < 0.5 else errno.ENOSPC
                raise OSError(number, os.strerror(number))

    # A life

    def _live(self, log: CommitLog) -> None:
        chance = self.chance
        try:
            for _ in range(chance.randrange(1, STEPS_MAX + 1)):
                step = chance.random()
                if step < 0.5:
                    self._append(log)
                elif step < 0.65:
                    log.write()
                elif step < 0.85:
                    log.write()
                    self.known.acknowledged = max(self.known.acknowledged, log.sync())
                elif step < 0.9:
                    log.roll()
                elif step < 0.95:
                    self.known.watermark = log.durable
                else:
                    self._trim(log)
        except DejaqError as error:
            assert error.code is Code.STORE_FAILED, error
            self._check_sticky(log)

    def _append(self, log: CommitLog) -> None:
        chance = self.chance
        for _ in range(chance.randrange(1, 4)):
            operations = Operations()
            operations.put(b"key", chance.randbytes(chance.randrange(40)))
            frames = [chance.randbytes(chance.randrange(60)) for _ in range(chance.choice((0, 0, 1, 2)))]
            addresses = log.addresses(frames)
            encoded = operations.encode()
            sequence = log.append(encoded, frames)
            assert sequence == max(self.known.entries, default=self.known.applied) + 1, "a sequence is not the next"
            self.known.entries[sequence] = Entry(log.epoch, encoded, frames, addresses)
            if frames and chance.random() < 0.3:
                self.known.needed.add(sequence)

    def _trim(self, log: CommitLog) -> None:
        """Remove files as the owner of the log does: any of them, but none with a frame that somebody needs."""
        known = self.known
        known.applied = self.chance.randrange(known.applied, known.acknowledged + 1)
        known.needed = {one for one in known.needed if one > known.applied or self.chance.random() < 0.8}
        kept = {address.file for one in known.needed for address in known.entries[one].addresses}
        free = {file.number for file in log.files} - kept
        log.trim(known.applied + 1, files={number for number in free if self.chance.random() < 0.8})

    def _check_sticky(self, log: CommitLog) -> None:
        """After a failure nothing is taken, written or synced, although the disk works again."""
        durable = log.durable
        calls: tuple[Callable[[], object], ...] = (lambda: log.append(b""), log.write, log.sync)
        for call in calls:
            try:
                call()
            except DejaqError as error:
                assert error.code is Code.STORE_FAILED, error
            else:
                raise AssertionError("the log works after a failure")
        assert log.durable == durable

    # Recovery

    def _recover(self) -> CommitLog | None:
        """Open the log and check what is there."""
        known = self.known
        recovery = Recovery(self.disk, applied=known.applied, watermark=known.watermark)
        end = self._check_records(recovery)
        assert end >= known.acknowledged, f"record {known.acknowledged} was acknowledged; the log ends with {end}"
        known.entries = {sequence: entry for sequence, entry in known.entries.items() if sequence <= end}
        known.needed = {sequence for sequence in known.needed if sequence <= end}
        epoch = max(recovery.epoch, known.epoch) + 1
        log = recovery.begin(epoch, salt=lambda: self.chance.getrandbits(32), file_bytes=self.file_bytes)
        known.epoch = epoch
        self._check_frames(log)
        # What was found may be shown to others, so it has to stay.
        known.acknowledged = max(known.acknowledged, end)
        return log

    def _check_records(self, recovery: Recovery) -> int:
        known = self.known
        expected = known.applied
        for record in recovery.records():
            expected += 1
            assert record.header.sequence == expected, f"record {record.header.sequence} follows {expected - 1}"
            entry = known.entries.get(expected)
            assert entry is not None, f"record {expected} was never appended, or was cut before"
            assert record.header.epoch == entry.epoch, f"record {expected} has another epoch"
            assert record.operations == entry.operations, f"record {expected} has other operations"
            lengths = [length for _, length in frame_lengths(record.frames) or ()]
            assert lengths == [len(frame) for frame in entry.frames], f"record {expected} has other frames"
        assert recovery.sequence == expected
        return expected

    def _check_frames(self, log: CommitLog) -> None:
        """Frames in the files that are there can be read, each by itself, and so can all that somebody needs."""
        files = {file.number for file in log.files}
        for sequence, entry in self.known.entries.items():
            for frame, address in zip(entry.frames, entry.addresses, strict=True):
                if address.file in files or sequence in self.known.needed:
                    assert log.read(address) == frame, f"a frame of record {sequence} is another"

    # Damage

    def _damage(self) -> None:
        """Change or cut one file. The log must refuse it, or have everything up to the watermark."""
        names = self.disk.list()
        if not names:
            return
        name = self.chance.choice(sorted(names))
        size = self.disk.size(name)
        if size and self.chance.random() < 0.5:
            self.disk.flip_bit(name, self.chance.randrange(size * 8))
        else:
            self.disk.cut(name, self.chance.randrange(size + 1))
        known = self.known
        try:
            end = self._check_records(Recovery(self.disk, applied=known.applied, watermark=known.watermark))
        except DejaqError as error:
            assert error.code in (Code.STORE_CORRUPT, Code.STORE_NEWER), error
        else:
            assert end >= known.watermark, f"the watermark is {known.watermark}; the log ends with {end}"


def run_schedules(seed: int, count: int) -> None:
    """Run so many schedules; a failure names the seed of its own."""
    for number in range(seed, seed + count):
        try:
            Schedule(number).run()
        except (AssertionError, DejaqError) as failure:
            failure.add_note(f"replay with DEJAQ_CHAOS_SEED={number} DEJAQ_CHAOS_R2=1")
            raise
