"""Copies of the directory of an open store, as a kill at that moment would leave it."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from dejaq.testing.waiting import eventually


def copied(data: Path, path: Path) -> bool:
    """Copy a directory as a kill leaves it; not where RocksDB changed its files meanwhile."""

    def tables() -> dict[str, int]:
        return {one.name: one.stat().st_size for one in (data / "db").iterdir() if not one.name.startswith("LOG")}

    try:
        before = tables()
        shutil.copytree(data, path)
        if tables() == before:
            return True
    except (shutil.Error, FileNotFoundError):
        pass
    shutil.rmtree(path, ignore_errors=True)
    return False


async def killed(data: Path, path: Path) -> None:
    """Copy a directory as a kill leaves it, as soon as RocksDB does not change its files."""
    await eventually(lambda: asyncio.to_thread(copied, data, path), within=10, what="a whole copy")
