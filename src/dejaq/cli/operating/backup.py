"""`dejaq backup` and `dejaq restore`: copies of the data directory of a broker with the embedded store."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dejaq.cli.terminal.invocation import Command, Invocation, pass_invocation
from dejaq.cli.terminal.output import iso
from dejaq.cli.terminal.progress import ProgressBar
from dejaq.errors import Code, error_of

if TYPE_CHECKING:
    from dejaq.backup.copies import Backup
    from dejaq.sdk.client import Client

MIB = 1024 * 1024


@click.command(cls=Command)
@click.argument("place", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--data",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="The data directory, where no broker runs on it.",
)
@pass_invocation
def backup(invocation: Invocation, place: Path, data: Path | None) -> None:
    """Copy everything that a broker keeps to a new directory in DIR, while the broker serves.

    What was acknowledged before the command is in the backup: topics, messages, leases, schedules, and the journal with
    its key. Run it on the broker's machine, as a user who may read its data directory. Files that an earlier backup in
    DIR has are shared with it, so that a backup takes the space of what changed. Every file is read back and compared.
    """
    from dejaq.backup import copies
    from dejaq.protocol.version import package_version

    begun = time.monotonic()
    now_ms = time.time_ns() // 1_000_000
    source = _checkpoint(invocation) if data is None else asyncio.run(_checkpoint_of(data.resolve(), now_ms))
    try:
        # Each byte is copied and then read back.
        total = 2 * sum(path.stat().st_size for path in copies.files_below(source))
        with _bar("backing up", total, invocation) as on_bytes:
            made = copies.make(source, place, now_ms=now_ms, release=package_version(), on_bytes=on_bytes)
    finally:
        shutil.rmtree(source, ignore_errors=True)
    invocation.output.record(
        _values(made) | {"copied_bytes": made.copied_bytes, "seconds": round(time.monotonic() - begun, 1)},
        f"{made.path}: {len(made.files)} files, {made.bytes / MIB:.1f} MiB, of which {made.copied_bytes / MIB:.1f} MiB "
        "are new; verified",
    )


@click.command(cls=Command)
@click.argument("source", metavar="BACKUP", type=click.Path(file_okay=False, exists=True, path_type=Path))
@click.argument("data", metavar="[DATA]", type=click.Path(file_okay=False, path_type=Path), required=False)
@click.option("--check", is_flag=True, help="Only read every file of the backup and compare it.")
@pass_invocation
def restore(invocation: Invocation, source: Path, data: Path | None, check: bool) -> None:
    """Make the new directory DATA from BACKUP, for a broker to be started on.

    BACKUP is a backup, or the directory of several, of which the newest is taken. DATA must be empty or not there.
    Every file is compared with what was backed up. The restored store gives leases under numbers that the store that
    was backed up never gave, and begins a journal of its own.
    """
    from dejaq.backup import copies

    found = copies.find(source)
    if check:
        with _bar("checking", found.bytes, invocation) as on_bytes:
            copies.verify(found, on_bytes=on_bytes)
        invocation.output.record(_values(found), f"{found.path}: {len(found.files)} files are as they were backed up")
        return
    if data is None:
        raise click.UsageError("DATA is missing: the new directory for the broker. With --check nothing is restored.")
    with _bar("restoring", found.bytes, invocation) as on_bytes:
        copies.copy_back(found, data, on_bytes=on_bytes)
    from dejaq.storage.rocksdb.engine.starting import begin_copy

    begin_copy(data)
    invocation.output.record(
        _values(found) | {"data": str(data)},
        f"{data} is as it was at {iso(found.made_ms)}; start a broker on it: dejaq serve --data {data}",
    )


def _checkpoint(invocation: Invocation) -> Path:
    """Have the broker make a checkpoint."""

    async def work(client: Client) -> str:
        return await client.checkpoint()

    path = Path(invocation.run(work))
    if not path.is_dir():
        raise error_of(
            Code.INVALID_ARGUMENT,
            f"the broker's checkpoint {path} cannot be read here; run dejaq backup on the broker's machine, as a user "
            "who may read its data directory",
        )
    return path


async def _checkpoint_of(data: Path, now_ms: int) -> Path:
    """Make a checkpoint of a directory on which no broker runs; STORE_LOCKED where one does."""
    from dejaq.backup.checkpoint import JOURNAL, make_checkpoint
    from dejaq.storage.rocksdb.store import RocksStorage

    if not (data / "db").is_dir():
        raise error_of(Code.INVALID_ARGUMENT, f"{data} is not a broker's data directory: it has no db")
    journal = data / JOURNAL
    storage = RocksStorage(data, journal=journal.is_dir())
    await storage.open(now_ms)
    try:
        return await make_checkpoint(storage, data, journal, held=nullcontext(), now_ms=now_ms)
    finally:
        await storage.close()


def _values(made: Backup) -> dict[str, object]:
    return {"backup": str(made.path), "made": iso(made.made_ms), "files": len(made.files), "bytes": made.bytes}


@contextmanager
def _bar(label: str, total: int, invocation: Invocation) -> Iterator[Callable[[int], None]]:
    """A bar over so many bytes."""
    with ProgressBar(label, total, quiet=invocation.json) as bar:
        done = 0

        def on_bytes(count: int) -> None:
            nonlocal done
            done += count
            bar.advance(count, f"{done / MIB:,.1f} of {total / MIB:,.1f} MiB")

        yield on_bytes
