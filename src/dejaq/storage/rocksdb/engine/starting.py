"""The start of an embedded store: what its directory must have, and the count of its starts."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dejaq import limits
from dejaq.crashpoints import crash_at
from dejaq.directories import make_directory
from dejaq.domain.topic import Topic
from dejaq.domain.topic_record import read_topic
from dejaq.errors import Code, DejaqError, error_of
from dejaq.storage.commit_log.files import DiskFiles
from dejaq.storage.commit_log.operations import Operations
from dejaq.storage.commit_log.recovery import Recovery
from dejaq.storage.commit_log.writer import CommitLog
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import RocksDatabase, new_batch
from dejaq.storage.rocksdb.engine.watermark import Mark, Watermark, manifest_of

log = logging.getLogger(__name__)

FORMAT = 10
# Of a directory that has had a log topic.
LOGS_FORMAT = 11
# The folders of the commit log, and of the segments of logs, in the data directory.
COMMIT, SEGMENTS = "commit", "segments"
# More starts than a store has between a backup and its restoration.
COPY_BOOTS = 10_000
_FORMAT, _BOOT = keys.META + b"format", keys.META + b"boot"
# There since the commit log has a record.
_LOGGED = keys.META + b"logged"
# A replay of so much is reported.
_LONG_BYTES = 64_000_000


def mark_of(path: Path, watermark: Watermark) -> Mark:
    """How far the store was known to be durable; in an empty directory that is nowhere."""
    database_path = path / "db"
    fresh = not (database_path / "CURRENT").exists()
    mark = watermark.read() if path.is_dir() else None
    if fresh and mark is not None and not mark.first:
        raise _lost(path, "its database")
    if not fresh and mark is None:
        raise _lost(path, "its watermark")
    try:
        make_directory(path)
        mark = mark or watermark.begin()
        crash_at("storage.first_mark")
        database_path.mkdir(exist_ok=True)
    except OSError as cause:
        raise error_of(Code.STORE_FAILED, f"cannot make {path}", details=str(cause)) from None
    return mark


@dataclass(frozen=True, slots=True)
class Started:
    """A store that has replayed its commit log and begun another epoch of it."""

    log: CommitLog
    # The number of this start, which is the epoch of the log.
    boot: int
    # The last change that was in the tables of the database, and the bytes of log that were replayed behind it.
    flushed: int
    replayed_bytes: int


def start_log(
    path: Path,
    database: RocksDatabase,
    watermark: Watermark,
    mark: Mark,
    *,
    file_bytes: int = limits.COMMIT_LOG_FILE_BYTES,
    boots: int = 1,
    salt: Callable[[], int] = lambda: secrets.randbits(32),
) -> Started:
    """Replay the commit log into the database, count the start durably, and mark it.

    Raises STORE_CORRUPT where acknowledged writes are lost, and STORE_NEWER where the format is newer.
    """
    version = database.get(_FORMAT)
    if version is not None and int(version) > LOGS_FORMAT:
        raise error_of(Code.STORE_NEWER, f"{path} has format {int(version)}; this release reads up to {LOGS_FORMAT}")
    try:
        if database.applied is None:
            _begin_log(path, database, mark)
        elif version is None or int(version) < FORMAT:
            # Before there is a record that an older release would replay, and could not read.
            database.put_durably(_FORMAT, str(FORMAT).encode())
            crash_at("storage.format_raised")
        files = DiskFiles(path / COMMIT)
    except DejaqError:
        raise
    except Exception as cause:  # noqa: BLE001  rocksdict raises plain Exception
        raise error_of(Code.STORE_FAILED, f"cannot write to {path}", details=str(cause)) from None
    try:
        return _replay_and_begin(path, database, files, watermark, mark, file_bytes=file_bytes, boots=boots, salt=salt)
    except BaseException:
        files.close()
        raise


def _replay_and_begin(
    path: Path,
    database: RocksDatabase,
    files: DiskFiles,
    watermark: Watermark,
    mark: Mark,
    *,
    file_bytes: int,
    boots: int,
    salt: Callable[[], int],
) -> Started:
    flushed = database.applied or 0
    recovery = Recovery(files, applied=flushed, watermark=mark.sequence)
    if recovery.empty and database.get(_LOGGED) is not None:
        raise _lost(path, "its commit log")
    size = recovery.bytes
    replay(database, recovery)
    boot = max(int(database.get(_BOOT) or b"0"), recovery.epoch) + boots
    opened = recovery.begin(boot, salt=salt, file_bytes=file_bytes)
    batch = new_batch()
    batch.put(_BOOT, str(boot).encode())
    batch.put(_LOGGED, b"")
    sequence = opened.append(batch.encode())
    opened.write()
    crash_at("storage.boot_written")
    opened.sync()
    crash_at("storage.boot_synced")
    try:
        database.apply(batch, sequence)
        if len(opened.files) > limits.COMMIT_LOG_FILES_MAX:
            # Starts that ended in a kill have left small files, which the log keeper can remove after a flush.
            database.flush()
            flushed, size = sequence, 0
        watermark.write(Mark(opened.durable, *manifest_of(database.path)))
    except Exception as cause:  # noqa: BLE001  rocksdict raises plain Exception
        raise error_of(Code.STORE_FAILED, f"cannot write to {path}", details=str(cause)) from None
    return Started(opened, boot, flushed, size)


def replay(database: RocksDatabase, recovery: Recovery) -> None:
    """Do every change of the log that the database does not have."""
    size, began = recovery.bytes, time.monotonic()
    if size >= _LONG_BYTES:
        log.info("replaying up to %d MB of the commit log", size // 1_000_000)
    database.replay((record.header.sequence, Operations.decode(record.operations)) for record in recovery.records())
    if size >= _LONG_BYTES:
        log.info("replayed the commit log in %.1f s", time.monotonic() - began)


def _begin_log(path: Path, database: RocksDatabase, mark: Mark) -> None:
    """From now on there is a commit log; its numbers go on from those of the database.

    A store of an older release has recovered its own log by now. Its watermark counts in the numbers of the database.
    """
    if database.sequence < mark.sequence:
        raise error_of(
            Code.STORE_CORRUPT,
            f"the log in {path} ends before what was acknowledged; restore it from a backup",
            details=f"last write {database.sequence}, acknowledged {mark.sequence}",
        )
    batch = new_batch()
    batch.put(_FORMAT, str(FORMAT).encode())
    database.begin_log(batch, max(database.sequence, mark.sequence))
    crash_at("storage.log_begun")


def raise_format(database: RocksDatabase, number: int) -> None:
    """Give a directory at least this format, durably. Blocks; call it in a thread."""
    if int(database.get(_FORMAT) or b"0") < number:
        database.put_durably(_FORMAT, str(number).encode())


def begin_copy(path: Path) -> None:
    """Make a restored copy a store of its own, which may be opened.

    The copied store may have continued and granted leases, under its present boot and under later ones. The copy
    skips these numbers, so that nobody who holds such a lease can change a message of the copy.
    """
    database = RocksDatabase(path / "db")
    try:
        mark = Mark(0, "", 0)
        started = start_log(path, database, Watermark(path / "watermark"), mark, boots=COPY_BOOTS)
        started.log.close()
    finally:
        database.close()


def stored_topics(database: RocksDatabase) -> list[Topic]:
    """The topics that have a record."""
    return [read_topic(value) for _, value in database.scan(keys.TOPIC, keys.after(keys.TOPIC))]


def _lost(path: Path, missing: str) -> DejaqError:
    return error_of(Code.STORE_CORRUPT, f"{path} has lost {missing}; restore the directory from a backup")
