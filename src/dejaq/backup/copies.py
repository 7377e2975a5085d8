"""Backups as directories: `PLACE/20261118T192500Z/` holds the files and `manifest.json`, which is written last.

A file with the content of one in an earlier backup of the same place is a hard link to it, so that a backup costs what
changed. Every backup is whole: any other may be removed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dejaq.directories import make_directory, sync_directory
from dejaq.errors import Code, error_of

FORMAT = 1
MANIFEST = "manifest.json"
_CHUNK_BYTES = 1024 * 1024

OnBytes = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class File:
    """One file of a backup."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Backup:
    """A whole backup, and how much of it was copied rather than shared with an earlier one."""

    path: Path
    made_ms: int
    files: tuple[File, ...]
    copied_bytes: int = 0

    @property
    def bytes(self) -> int:
        """How large it is on its own."""
        return sum(file.bytes for file in self.files)


def files_below(folder: Path) -> list[Path]:
    """Every file, in an order that is always the same."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def make(source: Path, place: Path, *, now_ms: int, release: str, on_bytes: OnBytes) -> Backup:
    """Copy a checkpoint into a new backup of a place, and verify it."""
    name = f"{datetime.fromtimestamp(now_ms / 1_000, UTC):%Y%m%dT%H%M%S}.{now_ms % 1_000:03d}Z"
    target = place / name
    make_directory(place, mode=0o700)
    known = {file.sha256: backup.path / file.path for backup in backups_in(place) for file in backup.files}
    target.mkdir(mode=0o700)
    files, copied = [], 0
    for path in files_below(source):
        relative = path.relative_to(source)
        (target / relative).parent.mkdir(parents=True, exist_ok=True)
        digest = digest_of(path)
        if not _share(known.get(digest), target / relative, path.stat().st_size):
            copied += _copy(path, target / relative)
        files.append(File(str(relative), path.stat().st_size, digest))
        on_bytes(path.stat().st_size)
    made = Backup(target, now_ms, tuple(files), copied)
    for file in made.files:
        _check(target, file, digest_of(target / file.path))
        on_bytes(file.bytes)
    _write_manifest(made, release)
    return made


def backups_in(place: Path) -> list[Backup]:
    """The whole backups of a place, oldest first, without interrupted ones."""
    return [read(path.parent) for path in sorted(place.glob(f"*/{MANIFEST}"))]


def read(folder: Path) -> Backup:
    """What the manifest of a backup says; raises STORE_CORRUPT when it is damaged, STORE_NEWER when it is newer."""
    path = folder / MANIFEST
    try:
        told = json.loads(path.read_text())
        if told["format"] > FORMAT:
            raise error_of(Code.STORE_NEWER, f"{path} has format {told['format']}; this release reads up to {FORMAT}")
        files = tuple(File(**one) for one in told["files"])
        if told["sha256"] != _digest_of_list(files):
            raise ValueError("its list of files is not the one that was written")
        return Backup(folder, int(told["made_ms"]), files)
    except (OSError, ValueError, KeyError, TypeError) as cause:
        raise error_of(Code.STORE_CORRUPT, f"{path} cannot be used", details=str(cause)) from None


def find(path: Path) -> Backup:
    """The backup at a path, or the newest below it."""
    if (path / MANIFEST).exists():
        return read(path)
    found = backups_in(path)
    if not found:
        raise error_of(Code.NOT_FOUND, f"there is no whole backup at {path}: none with a {MANIFEST}")
    return found[-1]


def verify(backup: Backup, *, on_bytes: OnBytes) -> None:
    """Read every file; raises STORE_CORRUPT for one that is gone or changed."""
    for file in backup.files:
        _check(backup.path, file, digest_of(backup.path / file.path))
        on_bytes(file.bytes)


def copy_back(backup: Backup, target: Path, *, on_bytes: OnBytes) -> None:
    """Copy every file to a directory that is new or empty, and check what arrived."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise error_of(Code.INVALID_ARGUMENT, f"{target} is not empty; a backup is restored to a new directory")
    make_directory(target, mode=0o700)
    for file in backup.files:
        (target / file.path).parent.mkdir(parents=True, exist_ok=True)
        try:
            _copy(backup.path / file.path, target / file.path)
        except FileNotFoundError:
            raise _damaged(backup.path / file.path, "it is gone") from None
        _check(target, file, digest_of(target / file.path), of=backup.path)
        on_bytes(file.bytes)
    for folder in _folders(target):
        sync_directory(folder)


def digest_of(path: Path) -> str:
    """The SHA-256 of a file; of one that is gone, none."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    except FileNotFoundError:
        return ""
    return digest.hexdigest()


def _check(folder: Path, file: File, digest: str, *, of: Path | None = None) -> None:
    if digest != file.sha256:
        raise _damaged((of or folder) / file.path, "it is gone" if not digest else f"its SHA-256 is {digest}")


def _damaged(path: Path, why: str) -> Exception:
    return error_of(Code.STORE_CORRUPT, f"{path} is not what was backed up; use another backup", details=why)


def _share(earlier: Path | None, target: Path, size: int) -> bool:
    """Make the file a link to that of an earlier backup, where there is one; it is verified with the others."""
    if earlier is None or not earlier.exists() or earlier.stat().st_size != size:
        return False
    try:
        os.link(earlier, target)
    except OSError:
        return False
    return True


def _copy(source: Path, target: Path) -> int:
    """Copy a file durably, with who may read it; its size."""
    shutil.copy2(source, target)
    with target.open("rb") as file:
        os.fsync(file.fileno())
    return target.stat().st_size


def _write_manifest(backup: Backup, release: str) -> None:
    files: list[dict[str, Any]] = [asdict(file) for file in backup.files]
    told = {
        "format": FORMAT,
        "release": release,
        "made_ms": backup.made_ms,
        "sha256": _digest_of_list(backup.files),
        "files": files,
    }
    aside = backup.path / f"{MANIFEST}.new"
    with aside.open("w") as file:
        json.dump(told, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    for folder in _folders(backup.path):
        sync_directory(folder)
    aside.rename(backup.path / MANIFEST)
    sync_directory(backup.path)
    sync_directory(backup.path.parent)


def _folders(path: Path) -> Iterator[Path]:
    yield path
    yield from (one for one in path.rglob("*") if one.is_dir())


def _digest_of_list(files: tuple[File, ...]) -> str:
    return hashlib.sha256(json.dumps([[one.path, one.bytes, one.sha256] for one in files]).encode()).hexdigest()
