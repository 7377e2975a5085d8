"""The commit log on a real file system: addresses of frames, files, trimming, recovery, damage."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from random import Random

import pytest

from dejaq.errors import Code, DejaqError
from dejaq.storage.commit_log.files import DiskFiles
from dejaq.storage.commit_log.operations import DELETE, DELETE_RANGE, PUT, Operations
from dejaq.storage.commit_log.reader import LogRecord, file_name
from dejaq.storage.commit_log.record import FILE_HEADER_BYTES, FileHeader, pack_file_header
from dejaq.storage.commit_log.recovery import Recovery
from dejaq.storage.commit_log.writer import CommitLog


def opened(path: Path, *, applied: int = 0, watermark: int = 0, file_bytes: int = 1 << 20) -> CommitLog:
    recovery = Recovery(DiskFiles(path), applied=applied, watermark=watermark)
    for _ in recovery.records():
        pass
    salts = count(7)
    return recovery.begin(recovery.epoch + 1, salt=lambda: next(salts), file_bytes=file_bytes)


def records(path: Path, *, applied: int = 0, watermark: int = 0) -> list[LogRecord]:
    return list(Recovery(DiskFiles(path), applied=applied, watermark=watermark).records())


def commit(log: CommitLog, *operations: bytes, frames: Sequence[bytes] = ()) -> None:
    for one in operations:
        log.append(one, frames)
    log.write()
    log.sync()


def refusal(path: Path, *, applied: int = 0, watermark: int = 0) -> DejaqError:
    with pytest.raises(DejaqError) as refused:
        records(path, applied=applied, watermark=watermark)
    return refused.value


def test_operations_are_read_as_they_were_recorded() -> None:
    operations = Operations()
    operations.put(b"key", b"value" * 100)
    operations.delete_range(b"a", b"b")
    operations.delete(b"")
    assert len(operations) == 3
    found = Operations.decode(operations.encode())
    assert list(found) == [(PUT, b"key", b"value" * 100), (DELETE_RANGE, b"a", b"b"), (DELETE, b"", b"")]
    assert list(Operations.decode(b"")) == []
    with pytest.raises(ValueError, match="not whole"):
        Operations.decode(operations.encode() + b"x")


def test_records_and_frames_are_read_back(tmp_path: Path) -> None:
    log = opened(tmp_path)
    frames = [b"first frame", b"", b"third" * 1_000]
    addresses = log.addresses(frames)
    commit(log, b"one", frames=frames)
    commit(log, b"two", b"three")
    assert [log.read(address) for address in addresses] == frames
    assert (log.sequence, log.written, log.durable) == (3, 3, 3)
    log.close()
    found = records(tmp_path)
    assert [(one.header.sequence, one.operations) for one in found] == [(1, b"one"), (2, b"two"), (3, b"three")]
    assert [one.header.synced for one in found] == [0, 1, 1]
    assert [one.header.sequence for one in records(tmp_path, applied=2)] == [3]


def test_nothing_is_durable_before_the_sync(tmp_path: Path) -> None:
    log = opened(tmp_path)
    assert log.append(b"one") == 1
    assert (log.written, log.durable) == (0, 0)
    assert log.write() == 1
    assert log.durable == 0
    assert log.sync() == 1


def test_files_roll_over_and_are_trimmed(tmp_path: Path) -> None:
    log = opened(tmp_path, file_bytes=150)
    addresses = []
    for number in range(20):
        addresses += log.addresses([b"frame"])
        commit(log, b"%d" % number, frames=[b"frame"])
    numbers = [file.number for file in log.files]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) > 5
    assert sum(file.size for file in log.files) == sum(path.stat().st_size for path in tmp_path.iterdir())
    log.trim(11)
    assert log.files[0].first <= 11 < log.files[1].first
    first, second, third, *_ = (file.number for file in log.files)
    log.trim(21, files={second})
    assert [file.number for file in log.files[:2]] == [first, third]
    log.trim(21, files={first})
    assert log.files[0].number == third
    assert log.read(addresses[-1]) == b"frame"
    with pytest.raises(DejaqError) as lost:
        log.read(addresses[0])
    assert lost.value.code is Code.STORE_CORRUPT
    assert [one.header.sequence for one in records(tmp_path, applied=18)] == [19, 20]
    assert "begins with record" in str(refusal(tmp_path, applied=3).details)


def test_the_records_of_a_file_are_read_in_portions_and_damage_is_reported(tmp_path: Path) -> None:
    log = opened(tmp_path)
    for number in range(10):
        commit(log, b"%d" % number, frames=[b"frame" * number])
    log.roll()
    commit(log, b"last")
    reader = log.reader(1)
    found = [one.header.sequence for one in reader.next(1 << 20, 4)]
    while portion := reader.next(60):
        found += [one.header.sequence for one in portion]
    assert found == list(range(1, 11))
    content = bytearray((tmp_path / file_name(1)).read_bytes())
    content[-1] ^= 1
    (tmp_path / file_name(1)).write_bytes(content)
    with pytest.raises(DejaqError) as damaged:
        log.reader(1).next(1 << 20, 100)
    assert damaged.value.code is Code.STORE_CORRUPT


def test_a_record_can_be_made_the_first_of_a_file(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.roll()
    commit(log, b"one")
    assert len(log.files) == 1
    log.roll()
    addresses = log.addresses([b"frame"])
    commit(log, b"two", frames=[b"frame"])
    assert [file.first for file in log.files] == [1, 2]
    assert log.read(addresses[0]) == b"frame"


def test_a_torn_end_is_cut_and_a_new_epoch_begins_a_file(tmp_path: Path) -> None:
    log = opened(tmp_path)
    commit(log, b"one", b"two")
    log.close()
    path = tmp_path / file_name(1)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    again = opened(tmp_path)
    assert again.sequence == 1
    commit(again, b"other")
    assert [(one.header.epoch, one.operations) for one in records(tmp_path)] == [(1, b"one"), (2, b"other")]
    again.close()
    # A file without a record is removed at the next start, and its epoch is not used again.
    opened(tmp_path).close()
    last = opened(tmp_path)
    assert (last.epoch, [file.first for file in last.files]) == (4, [1, 2, 3])


def test_a_broken_record_that_was_durable_is_refused(tmp_path: Path) -> None:
    """A later record says that the broken one was durable; without one, it may be the rest of a crash."""
    log = opened(tmp_path)
    commit(log, b"first" * 10)
    commit(log, b"second" * 10)
    end = log.files[0].size
    commit(log, b"third" * 10)
    path = tmp_path / file_name(1)
    whole = path.read_bytes()
    for position in range(FILE_HEADER_BYTES, end):
        damaged = bytearray(whole)
        damaged[position] ^= 1
        path.write_bytes(damaged)
        assert refusal(tmp_path).code is Code.STORE_CORRUPT
    damaged = bytearray(whole)
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    assert len(records(tmp_path)) == 2
    assert "acknowledged 3" in str(refusal(tmp_path, watermark=3).details)
    path.write_bytes(bytes(8) + whole[8:])
    assert refusal(tmp_path).code is Code.STORE_CORRUPT


def test_a_frame_that_looks_like_a_record_is_not_taken_for_one(tmp_path: Path) -> None:
    """Clients choose the bytes of frames; they do not know the salt of the file."""
    forging = opened(tmp_path / "forged")
    for number in range(5):
        commit(forging, b"%d" % number)
    forged = (tmp_path / "forged" / file_name(1)).read_bytes()
    recovery = Recovery(DiskFiles(tmp_path / "log"), applied=0, watermark=0)
    assert list(recovery.records()) == []
    log = recovery.begin(1, salt=lambda: 99)
    commit(log, b"one", frames=[forged])
    path = tmp_path / "log" / file_name(1)
    whole = bytearray(path.read_bytes())
    whole[FILE_HEADER_BYTES + 5] ^= 1
    path.write_bytes(whole)
    assert records(tmp_path / "log") == []


def test_a_file_that_is_missing_between_others_is_refused(tmp_path: Path) -> None:
    log = opened(tmp_path, file_bytes=100)
    for number in range(6):
        commit(log, b"%d" % number)
    (tmp_path / file_name(log.files[1].number)).unlink()
    assert refusal(tmp_path).code is Code.STORE_CORRUPT
    for path in tmp_path.iterdir():
        path.unlink()
    assert refusal(tmp_path, watermark=1).code is Code.STORE_CORRUPT
    assert records(tmp_path) == []


def test_a_file_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / file_name(1)).write_bytes(pack_file_header(FileHeader(epoch=1, first=1, salt=1, format=2)))
    assert refusal(tmp_path).code is Code.STORE_NEWER


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = Random(3)
    writev, write = os.writev, os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "writev", lambda file, blocks: writev(file, [b"".join(blocks)[: chance.randrange(1, 50)]]))
        patch.setattr(os, "write", lambda file, data: write(file, data[: chance.randrange(1, 50)]))
        log = opened(tmp_path)
        commit(log, *(b"%d" % number for number in range(2_000)))
    assert [one.operations for one in records(tmp_path)] == [b"%d" % number for number in range(2_000)]


def test_a_large_log_is_read_in_pieces(tmp_path: Path) -> None:
    log = opened(tmp_path, file_bytes=1 << 30)
    frame = Random(1).randbytes(3_000_000)
    for _ in range(4):
        commit(log, b"operations", frames=[frame])
    found = records(tmp_path)
    assert [len(one.frames) for one in found] == [len(frame) + 8] * 4
