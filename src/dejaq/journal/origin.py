"""The origin of a journal: the name of one store's history, created at its first start and stored with its data."""

from __future__ import annotations

import re
import secrets
from pathlib import Path

from dejaq.errors import Code, error_of
from dejaq.journal.aside import write_whole

_ORIGIN = re.compile(r"[0-9A-Za-z-]{1,64}")


def origin_of(path: Path) -> str:
    """The origin in the file, which is made when it is not there."""
    if not path.exists():
        return new_origin(path)
    origin = path.read_text(encoding="ascii", errors="replace").strip()
    if _ORIGIN.fullmatch(origin) is None:
        raise error_of(Code.STORE_CORRUPT, f"{path} holds no origin of a journal")
    return origin


def new_origin(path: Path) -> str:
    """Begin another history of the same store."""
    origin = secrets.token_hex(8)
    write_whole(path, origin.encode("ascii") + b"\n", what="origin")
    return origin
