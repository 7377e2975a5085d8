"""One origin's segments in a directory, as their only writer sees them.

A segment is valid when its manifest exists. Every file is written under a temporary name, fsynced and renamed, the
segment before its manifest. After a crash at any point, the directory therefore shows exactly what has been exported;
files that are not valid are removed and written again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

from dejaq.crashpoints import crash_at
from dejaq.directories import make_directory
from dejaq.errors import Code, error_of
from dejaq.journal.aside import aside_of, put_in_place, sync, write_whole
from dejaq.journal.keys import SigningKey
from dejaq.journal.manifest import BadStatement, Head, Manifest, Retention, Statement, hash_of
from dejaq.journal.names import (
    ASIDE_SUFFIX,
    HEAD_SUFFIX,
    MANIFEST_SUFFIX,
    PUBLIC_KEY,
    RETENTION_SUFFIX,
    SEGMENT_SUFFIX,
    SegmentName,
    named_files,
)
from dejaq.journal.retention import RetentionPolicy
from dejaq.journal.segment import SEGMENT_ROWS_MAX, WrittenSegment, expansion_of, file_hash, write_segment

_Statement = TypeVar("_Statement", bound=Statement)
# Writes consecutive records, as many as fit into so many rows, to a file.
Write = Callable[[Path, Sequence[bytes], int], WrittenSegment]


def _journal_writer(origin: str, store: str) -> Write:
    expansion = expansion_of(origin, store=store)

    def write(path: Path, records: Sequence[bytes], rows_max: int) -> WrittenSegment:
        return write_segment(path, expansion, records, rows_max=rows_max)

    return write


@dataclass(frozen=True, slots=True)
class _Kept:
    name: SegmentName
    size: int


class Ledger:
    """Appends segments to the chain and drops the oldest."""

    def __init__(
        self,
        directory: Path,
        *,
        origin: str,
        key: SigningKey,
        store: str = "",
        new_origin: bool = False,
        write: Write | None = None,
    ) -> None:
        self.origin = origin
        self._new_origin = new_origin
        self._directory = directory
        self._key = key
        self._write = write if write is not None else _journal_writer(origin, store)
        self._kept: deque[_Kept] = deque()
        # The bytes that the segments take on disk.
        self.size = 0
        self._previous_sha256 = ""
        # The last sequence that has been exported.
        self.last = 0

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        origin: str,
        key: SigningKey,
        store: str = "",
        new_origin: bool = False,
        write: Write | None = None,
    ) -> Ledger:
        """Read where the chain ends, and remove what a crash left unfinished.

        `store` is the identity of a store that several brokers share. `new_origin` says that the origin was made just
        now: its first record is its beginning, whatever number it has. `write` writes a segment; by default one of
        journal records.
        """
        make_directory(directory)
        ledger = cls(directory, origin=origin, key=key, store=store, new_origin=new_origin, write=write)
        ledger._show_key()
        ledger._recover()
        return ledger

    @property
    def segments(self) -> int:
        """The number of valid segments."""
        return len(self._kept)

    def _show_key(self) -> None:
        path, pem = self._directory / PUBLIC_KEY, self._key.public.pem()
        if not path.exists():
            write_whole(path, pem, what="public_key")
        elif path.read_bytes() != pem:
            raise error_of(
                Code.INVALID_ARGUMENT,
                f"the journal in {self._directory} is signed with another key than this store's; give it a directory "
                "of its own",
            )

    def _recover(self) -> None:
        retention = self._read(self._path(RETENTION_SUFFIX), Retention)
        begin = retention.first if retention is not None else 0
        self._previous_sha256 = retention.previous_sha256 if retention is not None else ""
        names = sorted(name for name in named_files(self._directory, MANIFEST_SUFFIX) if name.origin == self.origin)
        counted = [name for name in names if name.first >= begin]
        if counted:
            self.last = counted[-1].last
            self._previous_sha256 = hash_of((self._directory / counted[-1].manifest).read_bytes())
        self._kept = deque(_Kept(name, self._size_of(name)) for name in counted)
        self.size = sum(kept.size for kept in self._kept)
        self._clear_away(set(counted))
        # From here on, a valid segment must survive a power failure, because the outbox is trimmed after it.
        sync(self._directory)
        if counted:
            self._write_head()

    def _clear_away(self, counted: set[SegmentName]) -> None:
        for path in self._directory.glob(f"{self.origin}*{ASIDE_SUFFIX}"):
            path.unlink()
        for suffix in (SEGMENT_SUFFIX, MANIFEST_SUFFIX):
            for name in list(named_files(self._directory, suffix)):
                if name.origin == self.origin and name not in counted:
                    (self._directory / (name.stem + suffix)).unlink()

    def _size_of(self, name: SegmentName) -> int:
        try:
            return (self._directory / name.segment).stat().st_size
        except FileNotFoundError:
            # Verification reports this; the rest of the journal continues.
            return 0

    # Growing

    def append(self, records: Sequence[bytes], now_ms: int, *, rows_max: int = SEGMENT_ROWS_MAX) -> WrittenSegment:
        """Make records the next segment, as many as fit, and durable; raises when any step fails.

        After a failure the ledger must be opened again, because only the directory shows how far it came.
        """
        aside = aside_of(self._path(SEGMENT_SUFFIX))
        written = self._write(aside, records, rows_max)
        name = SegmentName(self.origin, written.first, written.last)
        if self._new_origin and not self.last and written.first > 1:
            self._begin_at(written.first, now_ms)
        manifest = Manifest(
            origin=self.origin,
            first=written.first,
            last=written.last,
            events=written.events,
            bytes=aside.stat().st_size,
            sha256=file_hash(aside),
            previous_sha256=self._previous_sha256,
            created_ms=now_ms,
        )
        put_in_place(aside, self._directory / name.segment, what="segment")
        content = manifest.signed_by(self._key)
        write_whole(self._directory / name.manifest, content, what="manifest")
        self._kept.append(_Kept(name, manifest.bytes))
        self.size += manifest.bytes
        self._previous_sha256 = hash_of(content)
        self.last = written.last
        self._write_head()
        return written

    def _begin_at(self, first: int, now_ms: int) -> None:
        """Sign that the history of this origin begins with this record, and that none before it was dropped."""
        begin = Retention(origin=self.origin, first=first, previous_sha256="", dropped_events=0, dropped_ms=now_ms)
        write_whole(self._path(RETENTION_SUFFIX), begin.signed_by(self._key), what="retention")

    def _write_head(self) -> None:
        head = Head(origin=self.origin, last=self.last, manifest_sha256=self._previous_sha256)
        write_whole(self._path(HEAD_SUFFIX), head.signed_by(self._key), what="head")

    # Shrinking

    def drop(self, policy: RetentionPolicy, now_ms: int) -> int:
        """Drop the oldest segments that the policy does not keep; returns their number. The chain's new start is
        signed first.
        """
        older = (kept.size for kept in islice(self._kept, max(0, len(self._kept) - 1)))
        surplus = policy.surplus(older, self.size, self._created_ms, now_ms)
        if not surplus:
            return 0
        dropped = list(islice(self._kept, surplus))
        gone = [self._manifest(kept.name) for kept in dropped]
        before = self._read(self._path(RETENTION_SUFFIX), Retention)
        retention = Retention(
            origin=self.origin,
            first=self._kept[surplus].name.first,
            previous_sha256=hash_of((self._directory / dropped[-1].name.manifest).read_bytes()),
            dropped_events=sum(manifest.events for manifest in gone) + (before.dropped_events if before else 0),
            dropped_ms=now_ms,
        )
        write_whole(self._path(RETENTION_SUFFIX), retention.signed_by(self._key), what="retention")
        for kept in dropped:
            self._kept.popleft()
            self.size -= kept.size
            (self._directory / kept.name.segment).unlink(missing_ok=True)
            crash_at("journal.between_drops")
            (self._directory / kept.name.manifest).unlink()
        return surplus

    def _created_ms(self, place: int) -> int:
        return self._manifest(self._kept[place].name).created_ms

    def _manifest(self, name: SegmentName) -> Manifest:
        path = self._directory / name.manifest
        manifest = self._read(path, Manifest)
        if manifest is None:
            raise error_of(Code.STORE_CORRUPT, f"{path} is gone")
        return manifest

    # Files

    def _path(self, suffix: str) -> Path:
        return self._directory / (self.origin + suffix)

    def _read(self, path: Path, kind: type[_Statement]) -> _Statement | None:
        if not path.exists():
            return None
        try:
            return kind.read(path.read_bytes(), self._key.public)
        except BadStatement as wrong:
            raise error_of(Code.STORE_CORRUPT, f"{path} {wrong}; run `dejaq audit verify`") from None
