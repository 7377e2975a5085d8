"""How far the log and the list of files were known to be durable, kept beside them.

RocksDB cannot distinguish a log or a manifest that was cut off from one that a crash left unfinished. The watermark
does: a store that lies below it has lost acknowledged writes, and is refused.

The first mark is there before the database is, and says that nothing was acknowledged yet: a first start may be
interrupted at any point, and the next start continues with the files that exist.
"""

from __future__ import annotations

import os
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dejaq.directories import sync_directory
from dejaq.errors import Code, error_of


@dataclass(frozen=True, slots=True)
class Mark:
    """The last durable write, and the size and checksum of the manifest at that time."""

    sequence: int
    manifest: str
    manifest_bytes: int
    # None where an older release wrote the mark.
    manifest_crc: int | None = None

    @property
    def first(self) -> bool:
        """Whether nothing was acknowledged yet."""
        return self.sequence == 0


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
        sequence, manifest, manifest_bytes, *crc = fields.split(" ")
        return Mark(int(sequence), manifest, int(manifest_bytes), int(crc[0]) if crc else None)

    def write(self, mark: Mark) -> None:
        """Replace the mark, durably."""
        aside = self._path.with_suffix(".new")
        _write_durably(aside, mark)
        aside.replace(self._path)
        sync_directory(self._path.parent)

    def begin(self) -> Mark:
        """Put the first mark there, durably, unless there is one; the mark that is there."""
        # Two processes may begin at the same time: neither may undo what the other has marked.
        aside = self._path.with_suffix(f".{os.getpid()}")
        _write_durably(aside, Mark(0, "", 0))
        with suppress(FileExistsError):
            os.link(aside, self._path)
        aside.unlink()
        sync_directory(self._path.parent)
        mark = self.read()
        assert mark is not None
        return mark


NO_MANIFEST = ("", 0, 0)


def manifest_of(database_path: Path, known: tuple[str, int, int] = NO_MANIFEST) -> tuple[str, int, int]:
    """The name, size and checksum of the manifest in use; NO_MANIFEST where there is none that can be read.

    It only grows, so of one that is `known` so far only the rest is read.
    """
    try:
        name = (database_path / "CURRENT").read_text().strip()
        size, crc = known[1:] if known[0] == name else (0, 0)
        with (database_path / name).open("rb") as file:
            file.seek(size)
            grown = file.read()
        return name, size + len(grown), zlib.crc32(grown, crc)
    except (OSError, UnicodeDecodeError, ValueError):
        return NO_MANIFEST


def _write_durably(path: Path, mark: Mark) -> None:
    fields = f"{mark.sequence} {mark.manifest} {mark.manifest_bytes}"
    if mark.manifest_crc is not None:
        fields += f" {mark.manifest_crc}"
    with path.open("w") as file:
        file.write(f"{fields} {_checksum(fields)}\n")
        file.flush()
        os.fsync(file.fileno())


def _checksum(fields: str) -> str:
    return f"{zlib.crc32(fields.encode()):08x}"


def check_manifest(database_path: Path, mark: Mark) -> None:
    """Raise STORE_CORRUPT when less of the manifest is there than was known to be durable, or something else.

    RocksDB takes a record that it cannot read for the end of the manifest, and all behind it for not there.
    """
    name, size, _ = manifest_of(database_path)
    if name == mark.manifest and size >= mark.manifest_bytes and mark.manifest_crc is not None:
        with (database_path / name).open("rb") as file:
            if zlib.crc32(file.read(mark.manifest_bytes)) != mark.manifest_crc:
                raise error_of(
                    Code.STORE_CORRUPT,
                    f"the manifest in {database_path} is damaged; restore {database_path.parent} from a backup",
                )
    if not name or (name == mark.manifest and size < mark.manifest_bytes):
        raise error_of(
            Code.STORE_CORRUPT,
            f"the manifest in {database_path} is cut off; restore {database_path.parent} from a backup",
            details=f"{size} of at least {mark.manifest_bytes} bytes",
        )
