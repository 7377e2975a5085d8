"""Checks that a journal is complete and genuine: every segment as it was written, none missing, none moved, none
added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from dejaq.errors import Code, error_of
from dejaq.journal.keys import VerifyingKey
from dejaq.journal.manifest import BadStatement, Head, Manifest, Retention, Statement, hash_of
from dejaq.journal.names import (
    HEAD_SUFFIX,
    MANIFEST_SUFFIX,
    PUBLIC_KEY,
    RETENTION_SUFFIX,
    SEGMENT_SUFFIX,
    SegmentName,
    named_files,
)
from dejaq.journal.segment import file_hash

_Statement = TypeVar("_Statement", bound=Statement)


class Fault(StrEnum):
    """The kinds of faults of a journal."""

    MISSING = "missing"
    EDITED = "edited"
    TRUNCATED = "truncated"
    REORDERED = "reordered"
    SIGNATURE = "signature"
    CHAIN = "chain"
    UNSIGNED = "unsigned"


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault, and its file."""

    fault: Fault
    file: str
    about: str


@dataclass(slots=True)
class VerificationReport:
    """The result of a check: what was examined, and the faults."""

    segments: int = 0
    events: int = 0
    bytes: int = 0
    # The first and the last sequence, by origin.
    origins: dict[str, tuple[int, int]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        """Whether there is no fault."""
        return not self.findings


def verify(
    directory: Path, *, key: Path | None = None, checked: Callable[[int, str], None] | None = None
) -> VerificationReport:
    """Check the journal in a directory against the public key in it, or against `key`, kept elsewhere.

    `checked` receives the size and the name of each segment. Raises INVALID_ARGUMENT when there is no journal.
    """
    if not directory.is_dir():
        raise error_of(Code.INVALID_ARGUMENT, f"{directory} is not a directory")
    origins = _origins(directory)
    if not origins:
        raise error_of(Code.INVALID_ARGUMENT, f"there is no journal in {directory}")
    report = VerificationReport()
    public = _public_key(key or directory / PUBLIC_KEY, report)
    if public is not None:
        for origin in sorted(origins):
            _Chain(directory, origin, public, report, checked or (lambda size, name: None)).check()
    return report


def _origins(directory: Path) -> set[str]:
    origins = {name.origin for suffix in (MANIFEST_SUFFIX, SEGMENT_SUFFIX) for name in named_files(directory, suffix)}
    return origins | {path.stem for suffix in (HEAD_SUFFIX, RETENTION_SUFFIX) for path in directory.glob(f"*{suffix}")}


def _public_key(path: Path, report: VerificationReport) -> VerifyingKey | None:
    try:
        return VerifyingKey.read(path)
    except FileNotFoundError:
        report.findings.append(Finding(Fault.MISSING, path.name, "the public key is missing"))
    except (OSError, ValueError) as cause:
        report.findings.append(Finding(Fault.EDITED, path.name, f"the public key cannot be read: {cause}"))
    return None


class _Chain:
    """The check of one origin."""

    def __init__(
        self,
        directory: Path,
        origin: str,
        key: VerifyingKey,
        report: VerificationReport,
        checked: Callable[[int, str], None],
    ) -> None:
        self._directory = directory
        self._origin = origin
        self._key = key
        self._report = report
        self._checked = checked
        # The hash of each manifest file by its last sequence, and the segment of each content hash.
        self._hashes: dict[int, str] = {}
        self._contents: dict[str, SegmentName] = {}

    def check(self) -> None:
        """Follow the chain from its start to its head."""
        # The head first: a broker that writes meanwhile only adds segments after it.
        head = self._statement(self._origin + HEAD_SUFFIX, Head)
        names = sorted(n for n in named_files(self._directory, MANIFEST_SUFFIX) if n.origin == self._origin)
        retention = self._statement(self._origin + RETENTION_SUFFIX, Retention)
        start = retention.first if retention is not None else 0
        previous = retention.previous_sha256 if retention is not None else ""
        names = [name for name in names if name.first >= start]
        manifests = dict(self._manifests(names))
        if names:
            self._report.origins[self._origin] = (names[0].first, names[-1].last)
            if retention is not None and names[0].first > start:
                self._tell_missing(start, names[0].first - 1)
            elif (manifest := manifests.get(names[0])) is not None and manifest.previous_sha256 != previous:
                about = "it is not the first segment of the journal; those before it are missing"
                self._report_fault(Fault.MISSING, names[0].manifest, about)
        self._check_links(names, manifests)
        for name, manifest in manifests.items():
            self._check_segment(name, manifest)
        self._check_head(head, names)
        self._check_unsigned(set(names), start, max([head.last if head is not None else 0, *(n.last for n in names)]))

    def _manifests(self, names: list[SegmentName]) -> Iterator[tuple[SegmentName, Manifest]]:
        for name in names:
            manifest = self._statement(name.manifest, Manifest)
            if manifest is None:
                continue
            if SegmentName(manifest.origin, manifest.first, manifest.last) != name:
                of = SegmentName(manifest.origin, manifest.first, manifest.last).segment
                self._report_fault(Fault.REORDERED, name.manifest, f"it is the manifest of {of}")
                continue
            self._contents[manifest.sha256] = name
            yield name, manifest

    def _check_links(self, names: list[SegmentName], manifests: dict[SegmentName, Manifest]) -> None:
        for before, name in pairwise(names):
            manifest = manifests.get(name)
            if name.first > before.last + 1:
                self._tell_missing(before.last + 1, name.first - 1)
            elif name.first <= before.last:
                self._report_fault(Fault.CHAIN, name.manifest, f"it repeats records of {before.segment}")
            elif manifest is None or before not in manifests:
                # A file that is already reported needs no second report.
                continue
            elif manifest.previous_sha256 != self._hashes[before.last]:
                self._report_fault(Fault.CHAIN, name.manifest, f"it does not follow {before.manifest}")

    def _check_segment(self, name: SegmentName, manifest: Manifest) -> None:
        path = self._directory / name.segment
        try:
            size, content = path.stat().st_size, file_hash(path)
        except FileNotFoundError:
            if not self._dropped_meanwhile(name):
                self._report_fault(Fault.MISSING, name.segment, "the segment is missing")
            return
        self._checked(size, name.segment)
        if content == manifest.sha256:
            self._report.segments += 1
            self._report.events += manifest.events
            self._report.bytes += size
        elif content in self._contents:
            about = f"it has the content of {self._contents[content].segment}"
            self._report_fault(Fault.REORDERED, name.segment, about)
        elif size < manifest.bytes:
            self._report_fault(Fault.TRUNCATED, name.segment, f"it has {size} of its {manifest.bytes} bytes")
        else:
            self._report_fault(Fault.EDITED, name.segment, "its content is not what was signed")

    def _check_head(self, head: Head | None, names: list[SegmentName]) -> None:
        last = names[-1].last if names else 0
        file = self._origin + HEAD_SUFFIX
        if head is None:
            if not (self._directory / file).exists():
                self._report_fault(Fault.MISSING, file, "the head of the journal is missing")
        elif head.last > last:
            self._tell_missing(last + 1, head.last)
        elif self._hashes.get(head.last, head.manifest_sha256) != head.manifest_sha256:
            self._report_fault(Fault.CHAIN, file, f"it names another manifest than the one that ends with {head.last}")

    def _check_unsigned(self, signed: set[SegmentName], start: int, last: int) -> None:
        """Find segments that no manifest vouches for, but for the one that a broker is writing, which comes next."""
        named = {finding.file for finding in self._report.findings}
        for name in sorted(named_files(self._directory, SEGMENT_SUFFIX)):
            if name.origin != self._origin or name in signed or (last and name.first == last + 1) or name.last < start:
                continue
            if (self._directory / name.manifest).exists() or not (self._directory / name.segment).exists():
                # Written, or dropped, since the check began.
                continue
            if name.segment not in named and name.manifest not in named:
                self._report_fault(Fault.UNSIGNED, name.segment, "no manifest vouches for it: it was added")

    def _dropped_meanwhile(self, name: SegmentName) -> bool:
        """Whether a broker that writes this journal has dropped the segment since the check began."""
        try:
            content = (self._directory / (self._origin + RETENTION_SUFFIX)).read_bytes()
            return Retention.read(content, self._key).first > name.first
        except (OSError, BadStatement):
            return False

    def _statement(self, file: str, kind: type[_Statement]) -> _Statement | None:
        try:
            content = (self._directory / file).read_bytes()
        except FileNotFoundError:
            return None
        name = SegmentName.parse(file)
        if name is not None:
            self._hashes[name.last] = hash_of(content)
        try:
            statement = kind.read(content, self._key)
        except BadStatement as wrong:
            self._report_fault(Fault.SIGNATURE, file, f"it {wrong}")
            return None
        if statement.origin != self._origin:
            self._report_fault(Fault.REORDERED, file, f"it is of origin {statement.origin}")
            return None
        return statement

    def _tell_missing(self, first: int, last: int) -> None:
        left = sorted(n for n in named_files(self._directory, SEGMENT_SUFFIX) if n.origin == self._origin)
        alone = [name for name in left if first <= name.first and name.last <= last]
        if alone:
            for name in alone:
                self._report_fault(Fault.MISSING, name.manifest, "the manifest of a segment is missing")
        else:
            name = SegmentName(self._origin, first, last)
            self._report_fault(Fault.MISSING, name.segment, f"the segments with records {first} to {last} are missing")

    def _report_fault(self, fault: Fault, file: str, about: str) -> None:
        self._report.findings.append(Finding(fault, file, about))
