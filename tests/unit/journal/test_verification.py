"""S6: every way of tampering with a journal is found, and it says which file it was. G9."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dejaq.errors import DejaqError
from dejaq.journal.keys import SigningKey
from dejaq.journal.ledger import Ledger
from dejaq.journal.manifest import Manifest, hash_of
from dejaq.journal.names import SegmentName, named_files
from dejaq.journal.retention import RetentionPolicy
from dejaq.journal.segment import file_hash
from dejaq.journal.verification import Fault, Report, verify
from tests.unit.journal.conftest import ORIGIN

pytestmark = pytest.mark.usefixtures("ledger")


def names(directory: Path) -> list[SegmentName]:
    return [SegmentName(ORIGIN, first, first + 1) for first in range(1, 10, 2)]


def found(report: Report) -> list[tuple[Fault, str]]:
    return [(finding.fault, finding.file) for finding in report.findings]


def test_an_untouched_journal_is_whole(directory: Path):
    seen: list[tuple[int, str]] = []
    report = verify(directory, checked=lambda size, name: seen.append((size, name)))
    assert report.whole
    assert (report.segments, report.events, report.origins) == (5, 20, {ORIGIN: (1, 10)})
    assert sum(size for size, _ in seen) == report.bytes
    assert [name for _, name in seen] == [name.segment for name in names(directory)]


@pytest.mark.parametrize("place", range(5))
def test_an_edited_segment_is_found(directory: Path, place: int):
    """G9: no segment can be edited unnoticed."""
    path = directory / names(directory)[place].segment
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert found(verify(directory)) == [(Fault.EDITED, path.name)]


@pytest.mark.parametrize("place", range(5))
def test_a_truncated_segment_is_found(directory: Path, place: int):
    """G9: no segment can be cut short unnoticed."""
    path = directory / names(directory)[place].segment
    path.write_bytes(path.read_bytes()[:-9])
    assert found(verify(directory)) == [(Fault.TRUNCATED, path.name)]


@pytest.mark.parametrize("place", range(5))
def test_a_missing_segment_is_found(directory: Path, place: int):
    path = directory / names(directory)[place].segment
    path.unlink()
    assert found(verify(directory)) == [(Fault.MISSING, path.name)]


@pytest.mark.parametrize("place", [1, 2, 3, 4])
def test_a_segment_missing_with_its_manifest_is_found(directory: Path, place: int):
    """G9: no segment can be taken away unnoticed."""
    name = names(directory)[place]
    (directory / name.segment).unlink()
    (directory / name.manifest).unlink()
    assert found(verify(directory)) == [(Fault.MISSING, name.segment)]


def test_a_missing_beginning_is_found(directory: Path):
    first, second, *_ = names(directory)
    (directory / first.segment).unlink()
    (directory / first.manifest).unlink()
    report = verify(directory)
    assert found(report) == [(Fault.MISSING, second.manifest)]
    assert "those before it are missing" in report.findings[0].about


def test_a_missing_end_of_several_segments_is_found(directory: Path):
    for name in names(directory)[3:]:
        (directory / name.segment).unlink()
        (directory / name.manifest).unlink()
    report = verify(directory)
    assert [finding.fault for finding in report.findings] == [Fault.MISSING]
    assert "records 7 to 10" in report.findings[0].about


def test_everything_missing_but_the_head_is_found(directory: Path):
    for name in names(directory):
        (directory / name.segment).unlink()
        (directory / name.manifest).unlink()
    assert "records 1 to 10" in verify(directory).findings[0].about


@pytest.mark.parametrize("place", [1, 4])
def test_a_missing_manifest_is_found(directory: Path, place: int):
    name = names(directory)[place]
    (directory / name.manifest).unlink()
    assert found(verify(directory)) == [(Fault.MISSING, name.manifest)]


def test_a_missing_head_is_found(directory: Path):
    (directory / f"{ORIGIN}.head").unlink()
    assert found(verify(directory)) == [(Fault.MISSING, f"{ORIGIN}.head")]


def test_swapped_segments_are_found(directory: Path, tmp_path: Path):
    _, second, _, fourth, _ = names(directory)
    _swap(directory / second.segment, directory / fourth.segment, tmp_path)
    report = verify(directory)
    assert found(report) == [(Fault.REORDERED, second.segment), (Fault.REORDERED, fourth.segment)]
    assert fourth.segment in report.findings[0].about


def test_segments_swapped_with_their_manifests_are_found(directory: Path, tmp_path: Path):
    """G9: segments cannot be put into another order unnoticed."""
    _, second, third, *_ = names(directory)
    _swap(directory / second.segment, directory / third.segment, tmp_path)
    _swap(directory / second.manifest, directory / third.manifest, tmp_path)
    assert found(verify(directory)) == [(Fault.REORDERED, second.manifest), (Fault.REORDERED, third.manifest)]


def _swap(one: Path, other: Path, aside: Path) -> None:
    one.rename(aside / "swapped")
    other.rename(one)
    (aside / "swapped").rename(other)


@pytest.mark.parametrize("field", ["events", "sha256", "previous_sha256", "created_ms", "signature"])
def test_an_edited_manifest_is_found(directory: Path, field: str):
    """G9: no manifest can be edited unnoticed."""
    path = directory / names(directory)[2].manifest
    values = json.loads(path.read_bytes())
    values[field] = values[field] + 1 if isinstance(values[field], int) else values[field][::-1]
    path.write_text(json.dumps(values, sort_keys=True, separators=(",", ":")) + "\n")
    assert found(verify(directory)) == [(Fault.SIGNATURE, path.name)]


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b"\xff\xfe", b'{"signature": 7, "format": 1}', b'{"format": 1}']
)
def test_a_manifest_of_nonsense_is_found(directory: Path, content: bytes):
    path = directory / names(directory)[2].manifest
    path.write_bytes(content)
    assert (Fault.SIGNATURE, path.name) in found(verify(directory))


def test_a_segment_forged_with_another_key_is_found(directory: Path, tmp_path: Path):
    name = names(directory)[2]
    path = directory / name.segment
    shutil.copy(directory / names(directory)[1].segment, path)
    forged = _resigned(directory, name, SigningKey.of(tmp_path / "other"), sha256=file_hash(path))
    (directory / name.manifest).write_bytes(forged)
    assert found(verify(directory)) == [(Fault.SIGNATURE, name.manifest)]


def test_a_manifest_signed_anew_with_the_stolen_key_breaks_the_chain(directory: Path, key: SigningKey):
    name, follower = names(directory)[2:4]
    (directory / name.manifest).write_bytes(_resigned(directory, name, key, created_ms=77))
    assert found(verify(directory)) == [(Fault.CHAIN, follower.manifest)]


def test_the_last_manifest_signed_anew_is_not_the_one_that_the_head_names(directory: Path, key: SigningKey):
    name = names(directory)[-1]
    (directory / name.manifest).write_bytes(_resigned(directory, name, key, created_ms=77))
    assert found(verify(directory)) == [(Fault.CHAIN, f"{ORIGIN}.head")]


def _resigned(directory: Path, name: SegmentName, key: SigningKey, **changes: object) -> bytes:
    values = json.loads((directory / name.manifest).read_bytes())
    del values["signature"], values["format"]
    return Manifest(**{**values, **changes}).signed_by(key)


def test_a_segment_put_in_between_is_found(directory: Path, key: SigningKey):
    second = names(directory)[1]
    extra = SegmentName(ORIGIN, 3, 3)
    shutil.copy(directory / second.segment, directory / extra.segment)
    content = _resigned(directory, second, key, last=3)
    (directory / extra.manifest).write_bytes(content)
    assert (Fault.CHAIN, second.manifest) in found(verify(directory))


def test_segments_dropped_by_hand_below_a_signed_start_are_found(directory: Path, ledger: Ledger):
    ledger.drop(RetentionPolicy(age_ms_max=1), 1_500)
    third, fourth = names(directory)[2:4]
    (directory / third.segment).unlink()
    (directory / third.manifest).unlink()
    assert found(verify(directory)) == [(Fault.MISSING, third.segment)]
    (directory / fourth.manifest).unlink()
    (directory / fourth.segment).unlink()
    assert "records 5 to 8" in verify(directory).findings[0].about


def test_an_old_signed_start_is_found(directory: Path, ledger: Ledger):
    ledger.drop(RetentionPolicy(age_ms_max=1), 500)
    old = (directory / f"{ORIGIN}.retention").read_bytes()
    ledger.drop(RetentionPolicy(age_ms_max=1), 2_500)
    (directory / f"{ORIGIN}.retention").write_bytes(old)
    report = verify(directory)
    assert [finding.fault for finding in report.findings] == [Fault.MISSING]
    assert "records 3 to 6" in report.findings[0].about


def test_a_removed_signed_start_is_found(directory: Path, ledger: Ledger):
    ledger.drop(RetentionPolicy(age_ms_max=1), 1_500)
    (directory / f"{ORIGIN}.retention").unlink()
    assert found(verify(directory)) == [(Fault.MISSING, names(directory)[2].manifest)]


def test_a_key_kept_elsewhere_finds_a_journal_signed_anew_as_a_whole(directory: Path, key: SigningKey, tmp_path: Path):
    kept = tmp_path / "kept.pub"
    kept.write_bytes(key.public.pem())
    assert verify(directory, key=kept).whole
    forger = SigningKey.of(tmp_path / "forger")
    previous = ""
    for name in names(directory):
        content = _resigned(directory, name, forger, previous_sha256=previous)
        (directory / name.manifest).write_bytes(content)
        previous = hash_of(content)
    (directory / f"{ORIGIN}.head").unlink()
    (directory / "journal.pub").write_bytes(forger.public.pem())
    Ledger.open(directory, origin=ORIGIN, key=forger)
    assert verify(directory).whole, "the key beside a journal vouches only for itself"
    assert {finding.fault for finding in verify(directory, key=kept).findings} == {Fault.SIGNATURE}


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [(Path.unlink, Fault.MISSING), (lambda path: path.write_bytes(b"nonsense"), Fault.EDITED)],
)
def test_a_public_key_that_is_gone_or_spoilt_is_found(directory: Path, spoil: Callable[[Path], object], fault: Fault):
    spoil(directory / "journal.pub")
    assert found(verify(directory)) == [(fault, "journal.pub")]


def test_a_segment_that_is_not_finished_is_no_fault(directory: Path):
    (directory / SegmentName(ORIGIN, 11, 12).segment).write_bytes(b"to be written anew")
    assert verify(directory).whole


def test_a_directory_without_a_journal_is_an_error(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    for path, about in ((tmp_path / "empty", "no journal"), (tmp_path / "nowhere", "not a directory")):
        with pytest.raises(DejaqError, match=about):
            verify(path)


def test_every_single_flipped_byte_is_found(directory: Path):
    """R11 for the journal: no byte of any of its files can change unnoticed."""
    for path in sorted(directory.iterdir()):
        content = path.read_bytes()
        step = max(1, len(content) // 60)
        for place in range(0, len(content), step):
            path.write_bytes(content[:place] + bytes([content[place] ^ 0x20]) + content[place + 1 :])
            assert not verify(directory).whole, f"byte {place} of {path.name}"
        path.write_bytes(content)
    assert verify(directory).whole


def test_no_name_but_a_segment_is_taken_for_one(directory: Path):
    for name in ("x.parquet", f"{ORIGIN}-1-2.json", f"{ORIGIN}-{1:020d}-{2:020d}.tmp", "journal.pub"):
        assert SegmentName.parse(name) is None
    assert len(list(named_files(directory, ".json"))) == 5
