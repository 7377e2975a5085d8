"""How far the log was known to be durable, kept beside it.

RocksDB takes a log that was cut off for one that a crash left unfinished. The watermark tells the two apart: a
store whose last sequence lies below it has lost acknowledged writes, and is refused.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path

from dejaq.errors import Code, error_of


class Watermark:
    """A small file with one number, replaced atomically."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> int | None:
        """The number; None when there is no file. Raises STORE_CORRUPT when it is damaged."""
        try:
            text = self._path.read_text()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as cause:
            raise error_of(Code.STORE_CORRUPT, f"{self._path} cannot be read", details=str(cause)) from None
        number, _, checksum = text.strip().partition(" ")
        if not number.isdigit() or checksum != _checksum(number):
            raise error_of(
                Code.STORE_CORRUPT, f"{self._path} is damaged; restore the data directory from a backup"
            )
        return int(number)

    def write(self, number: int) -> None:
        """Replace the number, durably."""
        aside = self._path.with_suffix(".new")
        with aside.open("w") as file:
            file.write(f"{number} {_checksum(str(number))}\n")
            file.flush()
            os.fsync(file.fileno())
        aside.replace(self._path)
        directory = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _checksum(number: str) -> str:
    return f"{zlib.crc32(number.encode()):08x}"
