"""The names of a journal's files: `<origin>-<first>-<last>`, with the sequences in 20 digits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SEGMENT_SUFFIX = ".parquet"
MANIFEST_SUFFIX = ".json"
HEAD_SUFFIX = ".head"
RETENTION_SUFFIX = ".retention"
ASIDE_SUFFIX = ".tmp"
PUBLIC_KEY = "journal.pub"

_STEM = re.compile(r"([0-9A-Za-z-]{1,64})-(\d{20})-(\d{20})")


@dataclass(frozen=True, slots=True, order=True)
class SegmentName:
    """The records `first` to `last`, both included, of one origin."""

    origin: str
    first: int
    last: int

    @property
    def stem(self) -> str:
        """The name without its suffix."""
        return f"{self.origin}-{self.first:020d}-{self.last:020d}"

    @property
    def segment(self) -> str:
        """The file with the events."""
        return self.stem + SEGMENT_SUFFIX

    @property
    def manifest(self) -> str:
        """The file with their manifest."""
        return self.stem + MANIFEST_SUFFIX

    @classmethod
    def parse(cls, file_name: str) -> SegmentName | None:
        """The name behind that of a segment or a manifest; None for any other file."""
        stem, dot, suffix = file_name.rpartition(".")
        match = _STEM.fullmatch(stem) if dot + suffix in (SEGMENT_SUFFIX, MANIFEST_SUFFIX) else None
        return cls(match[1], int(match[2]), int(match[3])) if match is not None else None


def named_files(directory: Path, suffix: str) -> Iterator[SegmentName]:
    """The segments, or the manifests, that a directory holds, in no order."""
    for path in directory.iterdir():
        name = SegmentName.parse(path.name) if path.name.endswith(suffix) else None
        if name is not None:
            yield name


def found_segments(directory: Path) -> dict[SegmentName, Path]:
    """The segments with a manifest, and the folder of each.

    They are in the directory itself, or, if several brokers have a journal, in directories below it. A listing that
    is made while a broker writes may contain a file without the one written before it, so a gap is checked again.
    """
    found = _listed(directory)
    ends: dict[str, int] = {}
    holes = False
    for name in sorted(found):
        holes = holes or name.first > ends.get(name.origin, name.first - 1) + 1
        ends[name.origin] = name.last
    if holes:
        again = _listed(directory)
        found |= {name: folder for name, folder in again.items() if name.last <= ends.get(name.origin, 0)}
    return found


def _listed(directory: Path) -> dict[SegmentName, Path]:
    folders = [directory, *(path for path in directory.iterdir() if path.is_dir())]
    return {name: folder for folder in folders for name in named_files(folder, MANIFEST_SUFFIX)}
