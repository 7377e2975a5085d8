"""S6: every kind of tampering with a journal is found, and the report names the file. G9."""

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
from dejaq.journal.verification import Fault, VerificationReport, verify
from tests.unit.journal.conftest import ORIGIN

pytestmark = pytest.mark.usefixtures("ledger")


def names(directory: Path) -> list[SegmentName]:
    return [SegmentName(ORIGIN, first, first + 1) for first in range(1, 10, 2)]


def found(report: VerificationReport) -> list[tuple[Fault, str]]:
    return [(finding.fault, finding.file) for finding in report.findings]


def test_an_untouched_journal_is_whole(directory: Path) -> None:
    seen: list[tuple[int, str]] = []
    report = verify(directory, checked=lambda size, name: seen.append((size, name)))
    assert report.whole
    assert (report.segments, report.events, report.origins) == (5, 20, {ORIGIN: (1, 10)})
    assert sum(size for size, _ in seen) == report.bytes
    assert [name for _, name in seen] == [name.segment for name in names(directory)]


@pytest.mark.parametrize("place", range(5))
def test_an_edited_segment_is_found(directory: Path, place: int) -> None:
    """G9: an edited segment is always found."""
    path = directory / names(directory)[place].segment
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert found(verify(directory)) == [(Fault.EDITED, path.name)]


@pytest.mark.parametrize("place", range(5))
def test_a_truncated_segment_is_found(directory: Path, place: int) -> None:
    """G9: a truncated segment is always found."""
    path = directory / names(directory)[place].segment
    path.write_bytes(path.read_bytes()[:-9])
    assert found(verify(directory)) == [(Fault.TRUNCATED, path.name)]


@pytest.mark.parametrize("place", range(5))
def test_a_missing_segment_is_found(directory: Path, place: int) -> None:
    path = directory / names(directory)[place].segment
    path.unlink()
    assert found(verify(directory)) == [(Fault.MISSING, path.name)]


@pytest.mark.parametrize("place", [1, 2, 3, 4])
def test_a_segment_missing_with_its_manifest_is_found(directory: Path, place: int) -> None:
    """G9: a removed segment is always found."""
    name = names(directory)[place]
    (directory / name.segment).unlink()
    (directory / name.manifest).unlink()
    assert found(verify(directory)) == [(Fault.MISSING, name.segment)]


def test_a_missing_beginning_is_found(directory: Path) -> None:
    first, second, *_ = names(directory)
    (directory / first.segment).unlink()
    (directory / first.manifest).unlink()
    report = verify(directory)
    assert found(report) == [(Fault.MISSING, second.manifest)]
    assert "those before it are missing" in report.findings[0].about


def test_a_missing_end_of_several_segments_is_found(directory: Path) -> None:
    for name in names(directory)[3:]:
        (directory / name.segment).unlink()
        (directory / name.manifest).unlink()
    report = verify(directory)
    assert [finding.fault for finding in report.findings] == [Fault.MISSING]
    assert "records 7 to 10" in report.findings[0].about


def test_everything_missing_but_the_head_is_found(directory: Path) -> None:
    for name in names(directory):
        (directory / name.segment).unlink()
        (directory / name.manifest).unlink()
    assert "records 1 to 10" in verify(directory).findings[0].about


@pytest.mark.parametrize("place", [1, 4])
def test_a_missing_manifest_is_found(directory: Path, place: int) -> None:
    name = names(directory)[place]
    (directory / name.manifest).unlink()
    assert found(verify(directory)) == [(Fault.MISSING, name.manifest)]


def test_a_missing_head_is_found(directory: Path) -> None:
    (directory / f"{ORIGIN}.head").unlink()
    assert found(verify(directory)) == [(Fault.MISSING, f"{ORIGIN}.head")]


def test_swapped_segments_are_found(directory: Path, tmp_path: Path) -> None:
    _, second, _, fourth, _ = names(directory)
    _swap(directory / second.segment, directory / fourth.segment, tmp_path)
    report = verify(directory)
    assert found(report) == [(Fault.REORDERED, second.segment), (Fault.REORDERED, fourth.segment)]
    assert fourth.segment in report.findings[0].about


def test_segments_swapped_with_their_manifests_are_found(directory: Path, tmp_path: Path) -> None:
    """G9: a changed order of segments is always found."""
    _, second, third, *_ = names(directory)
    _swap(directory / second.segment, directory / third.segment, tmp_path)
    _swap(directory / second.manifest, directory / third.manifest, tmp_path)
    assert found(verify(directory)) == [(Fault.REORDERED, second.manifest), (Fault.REORDERED, third.manifest)]


def _swap(one: Path, other: Path, aside: Path) -> None:
    one.rename(aside / "swapped")
    other.rename(one)
    (aside / "swapped").rename(other)


@pytest.mark.parametrize("field", ["events", "sha256", "previous_sha256", "created_ms", "signature"])
def test_an_edited_manifest_is_found(directory: Path, field: str) -> None:
    """G9: an edited manifest is always found."""
    path = directory / names(directory)[2].manifest
    values = json.loads(path.read_bytes())
    values[field] = values[field] + 1 if isinstance(values[field], int) else values[field][::-1]
    path.write_text(json.dumps(values, sort_keys=True, separators=(",", ":")) + "\n")
    assert found(verify(directory)) == [(Fault.SIGNATURE, path.name)]


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b"\xff\xfe", b'{"signature": 7, "format": 1}', b'{"format": 1}']
)
def test_a_manifest_of_nonsense_is_found(directory: Path, content: bytes) -> None:
    path = directory / names(directory)[2].manifest
    path.write_bytes(content)
    assert (Fault.SIGNATURE, path.name) in found(verify(directory))


def test_a_segment_forged_with_another_key_is_found(directory: Path, tmp_path: Path) -> None:
    name = names(directory)[2]
    path = directory / name.segment
    shutil.copy(directory / names(directory)[1].segment, path)
    forged = _resigned(directory, name, SigningKey.of(tmp_path / "other"), sha256=file_hash(path))
    (directory / name.manifest).write_bytes(forged)
    assert found(verify(directory)) == [(Fault.SIGNATURE, name.manifest)]


def test_a_manifest_signed_again_with_the_stolen_key_breaks_the_chain(directory: Path, key: SigningKey) -> None:
    name, follower = names(directory)[2:4]
    (directory / name.manifest).write_bytes(_resigned(directory, name, key, created_ms=77))
    assert found(verify(directory)) == [(Fault.CHAIN, follower.manifest)]


def test_the_last_manifest_signed_again_does_not_match_the_head(directory: Path, key: SigningKey) -> None:
    name = names(directory)[-1]
    (directory / name.manifest).write_bytes(_resigned(directory, name, key, created_ms=77))
    assert found(verify(directory)) == [(Fault.CHAIN, f"{ORIGIN}.head")]


def _resigned(directory: Path, name: SegmentName, key: SigningKey, **changes: object) -> bytes:
    values = json.loads((directory / name.manifest).read_bytes())
    del values["signature"], values["format"]
    return Manifest(**{**values, **changes}).signed_by(key)


def test_a_segment_put_in_between_is_found(directory: Path, key: SigningKey) -> None:
    second = names(directory)[1]
    extra = SegmentName(ORIGIN, 3, 3)
    shutil.copy(directory / second.segment, directory / extra.segment)
    content = _resigned(directory, second, key, last=3)
    (directory / extra.manifest).write_bytes(content)
    assert (Fault.CHAIN, second.manifest) in found(verify(directory))


def test_segments_dropped_by_hand_below_a_signed_start_are_found(directory: Path, ledger: Ledger) -> None:
    ledger.drop(RetentionPolicy(age_ms_max=1), 1_500)
    third, fourth = names(directory)[2:4]
    (directory / third.segment).unlink()
    (directory / third.manifest).unlink()
    assert found(verify(directory)) == [(Fault.MISSING, third.segment)]
    (directory / fourth.manifest).unlink()
    (directory / fourth.segment).unlink()
    assert "records 5 to 8" in verify(directory).findings[0].about


def test_an_old_signed_start_is_found(directory: Path, ledger: Ledger) -> None:
    ledger.drop(RetentionPolicy(age_ms_max=1), 500)
    old = (directory / f"{ORIGIN}.retention").read_bytes()
    ledger.drop(RetentionPolicy(age_ms_max=1), 2_500)
    (directory / f"{ORIGIN}.retention").write_bytes(old)
    report = verify(directory)
    assert [finding.fault for finding in report.findings] == [Fault.MISSING]
    assert "records 3 to 6" in report.findings[0].about


def test_a_removed_signed_start_is_found(directory: Path, ledger: Ledger) -> None:
    ledger.drop(RetentionPolicy(age_ms_max=1), 1_500)
    (directory / f"{ORIGIN}.retention").unlink()
    assert found(verify(directory)) == [(Fault.MISSING, names(directory)[2].manifest)]


def test_a_key_kept_elsewhere_detects_a_journal_that_was_signed_again_completely(
    directory: Path, key: SigningKey, tmp_path: Path
) -> None:
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
    assert verify(directory).whole, "the key in the directory of a journal proves nothing about it"
    assert {finding.fault for finding in verify(directory, key=kept).findings} == {Fault.SIGNATURE}


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [(Path.unlink, Fault.MISSING), (lambda path: path.write_bytes(b"nonsense"), Fault.EDITED)],
)
def test_a_missing_or_damaged_public_key_is_found(
    directory: Path, spoil: Callable[[Path], object], fault: Fault
) -> None:
    spoil(directory / "journal.pub")
    assert found(verify(directory)) == [(fault, "journal.pub")]


def test_a_segment_that_is_not_finished_is_no_fault(directory: Path) -> None:
    (directory / SegmentName(ORIGIN, 11, 12).segment).write_bytes(b"to be written again")
    assert verify(directory).whole


@pytest.mark.parametrize(
    "added", [SegmentName(ORIGIN, 4, 9), SegmentName(ORIGIN, 12, 14), SegmentName("another", 1, 5)]
)
def test_a_segment_that_was_added_without_a_manifest_is_found(directory: Path, added: SegmentName) -> None:
    """U13: readers that list *.parquet read the added file, and `audit verify` reported the journal as whole."""
    shutil.copy(directory / names(directory)[0].segment, directory / added.segment)
    report = verify(directory)
    assert (Fault.UNSIGNED, added.segment) in found(report)
    assert report.segments == 5


def test_a_directory_without_a_journal_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path, about in ((tmp_path / "empty", "no journal"), (tmp_path / "nowhere", "not a directory")):
        with pytest.raises(DejaqError, match=about):
            verify(path)


def test_every_single_flipped_byte_is_found(directory: Path) -> None:
    """R11 for the journal: a change of any byte of any of its files is found."""
    for path in sorted(directory.iterdir()):
        content = path.read_bytes()
        step = max(1, len(content) // 60)
        for place in range(0, len(content), step):
            path.write_bytes(content[:place] + bytes([content[place] ^ 0x20]) + content[place + 1 :])
            assert not verify(directory).whole, f"byte {place} of {path.name}"
        path.write_bytes(content)
    assert verify(directory).whole


def test_only_segment_names_are_recognised_as_segments(directory: Path) -> None:
    for name in ("x.parquet", f"{ORIGIN}-1-2.json", f"{ORIGIN}-{1:020d}-{2:020d}.tmp", "journal.pub"):
        assert SegmentName.parse(name) is None
    assert len(list(named_files(directory, ".json"))) == 5
