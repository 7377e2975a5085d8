"""The chain of segments on disk: it grows, it shrinks, and a crash at any point leaves it valid."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from dejaq.errors import DejaqError
from dejaq.journal.keys import SigningKey
from dejaq.journal.ledger import Ledger
from dejaq.journal.manifest import Head, Manifest, Retention, hash_of
from dejaq.journal.names import SegmentName, named_files
from dejaq.journal.retention import RetentionPolicy
from dejaq.journal.segment import file_hash, read_segment
from dejaq.journal.verification import verify
from tests.unit.journal.conftest import ORIGIN
from tests.unit.journal.records import created, deleted


def names(directory: Path, suffix: str = ".json") -> list[SegmentName]:
    return sorted(named_files(directory, suffix))


def test_the_size_is_that_of_the_files_after_every_change(ledger: Ledger, directory: Path, key: SigningKey) -> None:
    """D25: the size is increased and decreased, and not computed again from all segments at each export."""

    def on_disk() -> int:
        return sum((directory / name.segment).stat().st_size for name in names(directory))

    assert ledger.size == on_disk()
    ledger.drop(RetentionPolicy(age_ms_max=1), 2_500)
    assert (ledger.size, ledger.segments) == (on_disk(), len(names(directory)))
    assert Ledger.open(directory, origin=ORIGIN, key=key).size == on_disk()


def test_a_segment_has_its_range_in_its_name_and_a_signed_manifest(
    ledger: Ledger, directory: Path, key: SigningKey
) -> None:
    first, second, *_ = names(directory)
    assert first.stem == f"{ORIGIN}-00000000000000000001-00000000000000000002"
    assert SegmentName.parse(first.segment) == SegmentName.parse(first.manifest) == first
    manifest = Manifest.read((directory / first.manifest).read_bytes(), key.public)
    assert manifest == Manifest(
        origin=ORIGIN,
        first=1,
        last=2,
        events=4,
        bytes=(directory / first.segment).stat().st_size,
        sha256=file_hash(directory / first.segment),
        previous_sha256="",
        created_ms=0,
    )
    follower = Manifest.read((directory / second.manifest).read_bytes(), key.public)
    assert follower.previous_sha256 == hash_of((directory / first.manifest).read_bytes())


def test_a_segment_holds_its_events(ledger: Ledger, directory: Path) -> None:
    rows = read_segment(directory / names(directory)[1].segment).to_pylist()
    assert [(row["sequence"], row["row"], row["kind"]) for row in rows] == [
        (3, 0, "created"),
        (4, 0, "deleted"),
        (4, 1, "deleted"),
        (4, 2, "deleted"),
    ]
    assert rows[0]["id"] == "m-1"
    assert {row["origin"] for row in rows} == {ORIGIN}


def test_only_its_owner_can_read_the_private_key(key: SigningKey, tmp_path: Path) -> None:
    assert stat.S_IMODE((tmp_path / "journal.key").stat().st_mode) == 0o600
    again = SigningKey.of(tmp_path / "journal.key")
    assert again.public.pem() == key.public.pem()
    assert key.public.signed(b"x", again.sign(b"x"))
    assert not key.public.signed(b"y", again.sign(b"x"))


def test_a_ledger_continues_where_it_ended(ledger: Ledger, directory: Path, key: SigningKey) -> None:
    again = Ledger.open(directory, origin=ORIGIN, key=key)
    assert (again.last, again.segments, again.size) == (10, 5, ledger.size)
    again.append([created(11, ["next"])], 9_000)
    assert verify(directory).whole
    assert verify(directory).origins == {ORIGIN: (1, 11)}


def test_a_segment_is_cut_between_records_where_it_gets_too_long(directory: Path, key: SigningKey) -> None:
    ledger = Ledger.open(directory, origin=ORIGIN, key=key)
    records = [deleted(number, 40) for number in range(1, 6)]
    written = ledger.append(records, 0, rows_max=100)
    assert (written.records, written.first, written.last, written.events) == (3, 1, 3, 120)
    written = ledger.append(records[3:], 0, rows_max=100)
    assert (written.first, written.last, written.events) == (4, 5, 80)


def test_records_that_do_not_follow_each_other_are_refused(directory: Path, key: SigningKey) -> None:
    ledger = Ledger.open(directory, origin=ORIGIN, key=key)
    with pytest.raises(ValueError, match="record 3 comes after record 1"):
        ledger.append([deleted(1, 1), deleted(3, 1)], 0)
    assert names(directory) == names(directory, ".parquet") == []


def test_incomplete_files_after_a_crash_are_ignored(ledger: Ledger, directory: Path, key: SigningKey) -> None:
    last = names(directory)[-1]
    (directory / last.manifest).unlink()
    (directory / f"{ORIGIN}.parquet.tmp").write_bytes(b"half")
    (directory / f"{last.stem}.json.tmp").write_bytes(b"half")
    again = Ledger.open(directory, origin=ORIGIN, key=key)
    assert again.last == 8
    assert not list(directory.glob("*.tmp"))
    assert last not in names(directory, ".parquet")
    again.append([created(9, ["m-4"]), deleted(10, 3), created(11, ["late"])], 4_000)
    assert verify(directory).whole


def test_a_head_that_is_behind_after_a_crash_is_updated(ledger: Ledger, directory: Path, key: SigningKey) -> None:
    head = directory / f"{ORIGIN}.head"
    old = head.read_bytes()
    ledger.append([created(11, ["next"])], 0)
    head.write_bytes(old)
    assert verify(directory).whole, "a head that is behind is no fault, because the later chain is signed"
    Ledger.open(directory, origin=ORIGIN, key=key)
    assert Head.read(head.read_bytes(), key.public).last == 11


def test_dropping_keeps_the_chain_verifiable(ledger: Ledger, directory: Path, key: SigningKey) -> None:
    assert ledger.drop(RetentionPolicy(age_ms_max=2_000), 4_500) == 3
    assert [name.first for name in names(directory)] == [7, 9]
    assert names(directory, ".parquet") == names(directory)
    retention = Retention.read((directory / f"{ORIGIN}.retention").read_bytes(), key.public)
    assert (retention.first, retention.dropped_events, retention.dropped_ms) == (7, 12, 4_500)
    assert verify(directory).whole
    ledger.append([created(11, ["next"])], 5_000)
    assert ledger.drop(RetentionPolicy(bytes_max=1), 6_000) == 2
    again = Ledger.open(directory, origin=ORIGIN, key=key)
    assert (again.last, again.segments) == (11, 1)
    again.append([created(12, ["more"])], 7_000)
    report = verify(directory)
    assert report.whole, report.findings
    assert report.origins == {ORIGIN: (11, 12)}
    assert Retention.read((directory / f"{ORIGIN}.retention").read_bytes(), key.public).dropped_events == 20


def test_a_drop_that_a_crash_interrupted_is_completed(
    ledger: Ledger, directory: Path, key: SigningKey, tmp_path: Path
) -> None:
    dropped = names(directory)[:2]
    kept = {name: (directory / name.manifest).read_bytes() for name in dropped}
    segment = (directory / dropped[1].segment).read_bytes()
    ledger.drop(RetentionPolicy(age_ms_max=1), 1_500)
    for name, manifest in kept.items():
        (directory / name.manifest).write_bytes(manifest)
    (directory / dropped[1].segment).write_bytes(segment)
    assert verify(directory).whole, "segments before the signed start are no part of the chain"
    Ledger.open(directory, origin=ORIGIN, key=key)
    assert [name.first for name in names(directory)] == [5, 7, 9]
    assert names(directory, ".parquet") == names(directory)


def test_the_directory_of_another_key_is_refused(ledger: Ledger, directory: Path, tmp_path: Path) -> None:
    other = SigningKey.of(tmp_path / "other.key")
    with pytest.raises(DejaqError, match="signed with another key"):
        Ledger.open(directory, origin="store-2", key=other)


def test_two_origins_of_one_key_share_a_directory(ledger: Ledger, directory: Path, key: SigningKey) -> None:
    other = Ledger.open(directory, origin="store-1-b", key=key)
    assert other.last == 0
    other.append([created(7, ["elsewhere"])], 0)
    report = verify(directory)
    assert report.whole, report.findings
    assert report.origins == {ORIGIN: (1, 10), "store-1-b": (7, 7)}
    assert Ledger.open(directory, origin=ORIGIN, key=key).last == 10


def test_a_file_that_is_no_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"nonsense")
    with pytest.raises(DejaqError, match="is not a key"):
        SigningKey.of(tmp_path / "key")
