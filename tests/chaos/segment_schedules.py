"""R2 for segments: random schedules of a log whose older batches move into segment files, on a simulated disk.

The owner keeps an index of batches and segments by records of a commit log on the same disk. It moves batches, joins
segments, removes the oldest ones and trims the commit log in the order in which the store does. An operation fails or
the power is cut in the middle of any of them; then every acknowledged batch that was not removed must be there.
"""

from __future__ import annotations

import errno
import os
from dataclasses import astuple, dataclass, field
from random import Random

from dejaq.errors import Code, DejaqError
from dejaq.storage.commit_log.operations import PUT, Operations
from dejaq.storage.commit_log.record import FrameAddress
from dejaq.storage.commit_log.recovery import Recovery
from dejaq.storage.commit_log.writer import CommitLog
from dejaq.storage.log.base import StoredBatch
from dejaq.storage.segments import reading
from dejaq.storage.segments.files import SegmentFiles
from dejaq.storage.segments.writer import LogSegment
from dejaq.testing.simulated_disk import PowerCut, SimulatedDisk
from tests.chaos.log_schedules import PAGES

LIVES_MAX, STEPS_MAX = 4, 14


@dataclass(slots=True)
class Index:
    """What a database has of a log: its first offset, where each batch is, and its segments."""

    start: int = 0
    batches: dict[int, FrameAddress] = field(default_factory=dict)
    segments: list[LogSegment] = field(default_factory=list)

    @property
    def border(self) -> int:
        return self.segments[-1].end if self.segments else self.start

    @property
    def end(self) -> int:
        return max(self.batches, default=self.border - 1) + 1

    def copy(self) -> Index:
        return Index(self.start, dict(self.batches), list(self.segments))

    def apply(self, operations: Operations) -> None:
        for kind, key, value in operations:
            base = int(key[1:])
            if key[:1] == b"B":
                if kind == PUT:
                    self.batches[base] = FrameAddress(*map(int, value.split()))
                else:
                    del self.batches[base]
            else:
                self.segments = [one for one in self.segments if one.base != base]
                if kind == PUT:
                    number, *rest = map(int, value.split())
                    self.segments = sorted([*self.segments, LogSegment(number, *rest)], key=lambda one: one.base)  # type: ignore[arg-type]
                elif not any(one.base <= self.start < one.end for one in self.segments):
                    self.start = min((one.base for one in self.segments), default=min(self.batches, default=base))


def put_segment(changes: Operations, segment: LogSegment) -> None:
    changes.put(b"S%d" % segment.base, b" ".join(b"%d" % int(one) for one in astuple(segment)))


class SegmentSchedule:
    """One schedule; `run` raises AssertionError when a batch is lost or changed."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = Random(seed)
        page, sector = chance.choice(PAGES)
        self.disk = SimulatedDisk(chance, page_bytes=page, sector_bytes=sector)
        self.disk.before = self._before
        self.file_bytes = chance.choice((300, 2_000))
        self.contents: list[bytes] = []
        # How many batches were acknowledged; the first that may be missing because its removal was tried.
        self.acknowledged = self.removed = 0
        # The tables of the database, and up to which record they go.
        self.tables, self.applied = Index(), 0
        self.index, self.epoch, self.until_fault = Index(), 0, 0
        self.fault: type[Exception] = PowerCut

    def run(self) -> None:
        for _ in range(self.chance.randrange(1, LIVES_MAX + 1)):
            self.until_fault = self.chance.randrange(1, 80) if self.chance.random() < 0.8 else 0
            self.fault = PowerCut if self.chance.random() < 0.6 else OSError
            try:
                self._live()
            except PowerCut:
                pass
            except DejaqError as error:
                assert error.code is Code.STORE_FAILED, f"refused without a reason: {error} {error.details}"
            if self.chance.random() < 0.8:
                self.until_fault = 0
                self.disk.crash()
        self.until_fault = 0
        self._open()

    def _before(self, operation: str) -> None:
        if self.until_fault:
            self.until_fault -= 1
            if not self.until_fault:
                if self.fault is PowerCut:
                    raise PowerCut(operation)
                raise OSError(errno.EIO, os.strerror(errno.EIO))

    def _live(self) -> None:
        self._open()
        for _ in range(self.chance.randrange(1, STEPS_MAX + 1)):
            step = self.chance.random()
            if step < 0.4:
                self._append()
            elif step < 0.6:
                self._move()
            elif step < 0.7:
                self._join()
            elif step < 0.8:
                self._remove_oldest()
            else:
                self._flush_and_trim()

    def _commit(self, changes: Operations, frames: list[bytes]) -> None:
        self.log.append(changes.encode(), frames)
        self.log.write()
        self.log.sync()
        self.index.apply(changes)

    def _append(self) -> None:
        count = self.chance.randrange(1, 4)
        del self.contents[self.index.end :]
        new = [self.chance.randbytes(self.chance.randrange(1, 60)) for _ in range(count)]
        self.contents += new
        changes = Operations()
        for place, address in enumerate(self.log.addresses(new)):
            changes.put(b"B%d" % (self.index.end + place), b"%d %d %d" % address)
        self._commit(changes, new)
        self.acknowledged = len(self.contents)

    def _move(self) -> None:
        base, end = self.index.border, self.index.end
        if base == end:
            return
        end = self.chance.randrange(base, end) + 1
        writer = self.files.begin(1, 0, base)
        for at in range(base, end):
            assert at in self.index.batches, f"batch {at} is lost"
            writer.add(StoredBatch(at, 1, at, self.log.read(self.index.batches[at])))
        segment, changes = writer.finish(), Operations()
        put_segment(changes, segment)
        for at in range(base, end):
            changes.delete(b"B%d" % at)
        self._commit(changes, [])

    def _join(self) -> None:
        old = self.index.segments[-2:]
        if len(old) < 2:
            return
        writer, changes = self.files.begin(1, 0, old[0].base), Operations()
        for _, _, batches in reading.all_batches(self.files, old):
            for one in batches:
                writer.add(one)
        for segment in old:
            changes.delete(b"S%d" % segment.base)
        put_segment(changes, writer.finish())
        self._commit(changes, [])
        self.files.remove([one.number for one in old])

    def _remove_oldest(self) -> None:
        if len(self.index.segments) < 2:
            return
        first, changes = self.index.segments[0], Operations()
        changes.delete(b"S%d" % first.base)
        self.removed = first.end
        self._commit(changes, [])
        self.index.start = first.end
        self.files.remove([first.number])

    def _flush_and_trim(self) -> None:
        self.tables, self.applied = self.index.copy(), self.log.durable
        needed = {address.file for address in self.index.batches.values()}
        self.log.trim(self.applied + 1, files={file.number for file in self.log.files} - needed)

    # Recovery

    def _open(self) -> None:
        recovery = Recovery(self.disk, applied=self.applied, watermark=0)
        index = self.tables.copy()
        for record in recovery.records():
            index.apply(Operations.decode(record.operations))
        self.epoch = max(recovery.epoch, self.epoch) + 1
        self.log: CommitLog = recovery.begin(
            self.epoch, salt=lambda: self.chance.getrandbits(32), file_bytes=self.file_bytes
        )
        self.index = index
        self.files = SegmentFiles(self.disk)
        unused = self.files.check(index.segments)
        self._check()
        self.files.remove(unused)
        # What was found may be shown to others, so it has to stay.
        self.acknowledged = max(self.acknowledged, index.end)

    def _check(self) -> None:
        index = self.index
        assert index.end >= self.acknowledged, f"batch {self.acknowledged - 1} was acknowledged; {index.end} are there"
        if index.segments:
            index.start = index.segments[0].base
        assert index.start <= self.removed, f"batches from {self.removed} on are lost, up to {index.start}"
        at = index.start
        for segment in index.segments:
            assert segment.base == at, f"a segment begins at {segment.base}, not at {at}"
            for _, _, batches in reading.all_batches(self.files, [segment]):
                for batch in batches:
                    assert (batch.base, batch.records) == (at, self.contents[at]), f"batch {at} is another one"
                    at += 1
            assert at == segment.end
        for base in sorted(index.batches):
            assert base == at, f"a batch has the offset {base}, not {at}"
            assert self.log.read(index.batches[base]) == self.contents[at], f"batch {at} is another one"
            at += 1


def run_segment_schedules(seed: int, count: int) -> None:
    """Run so many schedules, which depend on the seed alone."""
    for number in range(seed, seed + count):
        try:
            SegmentSchedule(number).run()
        except (AssertionError, DejaqError) as error:
            raise AssertionError(f"schedule {number}: {error!r}") from error
