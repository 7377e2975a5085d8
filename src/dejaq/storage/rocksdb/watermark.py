"""How far the log and the list of files were known to be durable, kept beside them.

RocksDB takes a log or a manifest that was cut off for one that a crash left unfinished. The watermark tells the two
apart: a store that lies below it has lost acknowledged writes, and is refused.
"""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass
from pathlib import Path

from dejaq.errors import Code, error_of


@dataclass(frozen=True, slots=True)
class Mark:
    """The last durable write, and the size of the manifest at that time."""

    sequence: int
    manifest: str
    manifest_bytes: int


class Watermark:
    """A small file with one mark, replaced atomically."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Mark | None:
        """The mark; None when there is no file. Raises STORE_CORRUPT when it is damaged."""
        try:
            text = self._path.read_text()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as cause:
            raise error_of(Code.STORE_CORRUPT, f"{self._path} cannot be read", details=str(cause)) from None
        fields, _, checksum = text.strip().rpartition(" ")
        if checksum != _checksum(fields):
            raise error_of(Code.STORE_CORRUPT, f"{self._path} is damaged; restore the data directory from a backup")
        sequence, manifest, manifest_bytes = fields.split(" ")
        return Mark(int(sequence), manifest, int(manifest_bytes))

    def write(self, mark: Mark) -> None:
        """Replace the mark, durably."""
        fields = f"{mark.sequence} {mark.manifest} {mark.manifest_bytes}"
        aside = self._path.with_suffix(".new")
        with aside.open("w") as file:
            file.write(f"{fields} {_checksum(fields)}\n")
            file.flush()
            os.fsync(file.fileno())
        aside.replace(self._path)
        directory = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def manifest_of(database_path: Path) -> tuple[str, int]:
    """The name and size of the manifest in use; ("", 0) where there is none that can be read."""
    try:
        name = (database_path / "CURRENT").read_text().strip()
        return name, (database_path / name).stat().st_size
    except (OSError, UnicodeDecodeError, ValueError):
        return "", 0


def _checksum(fields: str) -> str:
    return f"{zlib.crc32(fields.encode()):08x}"


def check_manifest(database_path: Path, mark: Mark) -> None:
    """Raise STORE_CORRUPT when less of the manifest is there than was known to be durable."""
    name, size = manifest_of(database_path)
    if not name or (name == mark.manifest and size < mark.manifest_bytes):
        raise error_of(
            Code.STORE_CORRUPT,
            f"the manifest in {database_path} is cut off; restore {database_path.parent} from a backup",
            details=f"{size} of at least {mark.manifest_bytes} bytes",
        )
