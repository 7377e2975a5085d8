"""Looking at the data directory of an embedded store from outside: what it has, and whether it is whole."""

from __future__ import annotations

import fcntl
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from rocksdict import AccessType, Options, Rdict

from dejaq import limits
from dejaq.errors import Code, DejaqError, error_of
from dejaq.storage.commit_log.files import DiskFiles
from dejaq.storage.commit_log.reader import file_number, read_frame_at
from dejaq.storage.commit_log.record import FRAME_HEADER_BYTES
from dejaq.storage.commit_log.verification import header_of, log_names, verify_log
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import open_error
from dejaq.storage.rocksdb.engine.frame_uses import unpack_count
from dejaq.storage.rocksdb.engine.frames import address_in
from dejaq.storage.rocksdb.engine.starting import COMMIT, SEGMENTS
from dejaq.storage.rocksdb.engine.watermark import Mark, Watermark, check_manifest
from dejaq.storage.rocksdb.log import verifying
from dejaq.storage.rocksdb.timeline.ids.sorted_run import ENTRY_MEMORY_BYTES, entries_in
from dejaq.storage.rocksdb.timeline.levels.wide_runs import level_of

_LEVELS = 7


def inspect(path: Path) -> dict[str, Any]:
    """The sizes and positions of a store, also of one that a broker uses."""
    _check_directory(path)
    names = log_names(path / COMMIT)
    mark = Watermark(path / "watermark").read()
    with _read_only(path) as database:
        live = _live_bytes(database)
        return {
            "data": str(path),
            "format": int(_meta(database, b"format") or 0),
            "starts": int(_meta(database, b"boot") or 0),
            "flushed": int.from_bytes(_meta(database, b"applied") or b"", "big"),
            "watermark": 0 if mark is None else mark.sequence,
            "log_bytes": sum((path / COMMIT / name).stat().st_size for name in names),
            "log_live_bytes": sum(size for _, size in live.values()),
            "log_files": [_log_file(path / COMMIT / name, live) for name in names],
            "log_limits": {
                "file_bytes": limits.COMMIT_LOG_FILE_BYTES,
                "flush_bytes": limits.COMMIT_LOG_FLUSH_BYTES,
                "bytes_max": limits.COMMIT_LOG_BYTES_MAX,
                "journal_bytes_max": limits.COMMIT_LOG_JOURNAL_BYTES_MAX,
                "files_max": limits.COMMIT_LOG_FILES_MAX,
            },
            "segments": verifying.summary(partial(_scan, database)),
            "wide_runs": _wide_runs(database),
            "ids": _ids(database),
            "levels": _levels(database),
        }


def _live_bytes(database: Rdict) -> dict[int, tuple[int, int]]:
    """How many runs are frames of each file of the log, and their bytes, as of the tables of the database."""
    live: dict[int, tuple[int, int]] = {}
    for (_, file), (frames, size) in _log_uses(database).items():
        before = live.get(file, (0, 0))
        live[file] = before[0] + frames, before[1] + size
    return live


def _log_uses(database: Rdict) -> dict[tuple[int, int], tuple[int, int]]:
    return {keys.log_use_of(key): unpack_count(value) for key, value in _scan(database, keys.LOG_USE)}


def _wide_runs(database: Rdict) -> dict[str, int]:
    """How many wide runs each level of merges has."""
    levels = Counter(level_of(value) for _, value in _scan(database, keys.EXTENT))
    return {str(level): count for level, count in sorted(levels.items())}


def _ids(database: Rdict) -> dict[str, int]:
    """The entries of own ids in sorted runs, and about how much memory they take."""
    entries = [count for _, value in _scan(database, keys.ID_RUN) if (count := entries_in(value)) is not None]
    return {"runs": len(entries), "entries": sum(entries), "memory_bytes": ENTRY_MEMORY_BYTES * sum(entries)}


def _scan(database: Rdict, table: bytes) -> Iterator[tuple[bytes, bytes]]:
    iterator = database.iter()
    iterator.seek(table)
    while iterator.valid() and iterator.key().startswith(table):
        yield iterator.key(), iterator.value()
        iterator.next()


def _log_file(path: Path, live: dict[int, tuple[int, int]]) -> dict[str, Any]:
    header = header_of(path)
    runs, size = live.get(file_number(path.name), (0, 0))
    return {
        "file": path.name,
        "bytes": path.stat().st_size,
        "runs": runs,
        "live_bytes": size,
        "epoch": None if header is None else header.epoch,
        "first": None if header is None else header.first,
    }


def _levels(database: Rdict) -> list[dict[str, int]]:
    levels = [{"level": number, "tables": 0, "bytes": 0} for number in range(_LEVELS)]
    for table in database.live_files():
        levels[table["level"]]["tables"] += 1
        levels[table["level"]]["bytes"] += table["size"]
    return [level for level in levels if level["tables"]]


def check(path: Path, on_bytes: Callable[[int], None] = lambda count: None) -> dict[str, Any]:
    """Read everything that a store has; the result names every problem. Raises STORE_LOCKED while a broker uses it."""
    _check_directory(path)
    problems: list[str] = []
    mark: Mark | None = None
    with _unused(path):
        with _noted(problems):
            mark = Watermark(path / "watermark").read()
            if mark is None:
                problems.append(f"{path} has lost its watermark")
            elif not mark.first:
                check_manifest(path / "db", mark)
        applied, records, runs, segments = 0, 0, 0, verifying.SegmentReport()
        with _noted(problems), _read_only(path) as database:
            applied = int.from_bytes(_meta(database, b"applied") or b"", "big")
            records = _read_all(database, path, on_bytes)
            runs = _check_runs(database, path / COMMIT, problems)
            segments = verifying.verify(
                *(partial(_scan, database), path / SEGMENTS, path / COMMIT), applied=applied, on_bytes=on_bytes
            )
            problems += segments.problems
        report = verify_log(
            path / COMMIT, applied=applied, watermark=0 if mark is None else mark.sequence, on_bytes=on_bytes
        )
    if applied and not report.files:
        problems.append(f"{path} has lost its commit log")
    return {
        "data": str(path),
        "database_records": records,
        "applied": applied,
        "log_files": report.files,
        "log_records": report.records,
        "log_frames": report.frames,
        "log_runs": runs,
        "log_bytes": report.bytes,
        "log_last": report.last,
        "segments": segments.files,
        "segment_blocks": segments.blocks,
        "segment_bytes": segments.bytes,
        "segments_unused": segments.unused,
        "problems": problems + report.problems,
    }


@contextmanager
def _noted(problems: list[str]) -> Iterator[None]:
    try:
        yield
    except DejaqError as error:
        problems.append(f"{error.message}: {error.details}" if error.details else error.message)


def _read_all(database: Rdict, path: Path, on_bytes: Callable[[int], None]) -> int:
    """Read every record, and with it every block of every table that has one; RocksDB verifies their checksums."""
    count = 0
    iterator = database.iter()
    iterator.seek_to_first()
    while iterator.valid():
        count += 1
        on_bytes(len(iterator.key()) + len(iterator.value()))
        iterator.next()
    try:
        iterator.status()
    except Exception as cause:  # noqa: BLE001  rocksdict raises plain Exception
        raise open_error(path / "db", cause) from None
    return count


def _check_runs(database: Rdict, path: Path, problems: list[str]) -> int:
    """Read every frame of the log to which the database has a pointer, and compare what it counts of them."""
    files = DiskFiles(path)
    found: dict[tuple[int, int], tuple[int, int]] = {}
    broken: Counter[str] = Counter()
    try:
        for key, value in chain.from_iterable(_scan(database, table) for table in keys.FRAME_TABLES):
            address = address_in(value)
            if address is None:
                continue
            place = keys.topic_of(key), address.file
            frames, size = found.get(place, (0, 0))
            found[place] = frames + 1, size + FRAME_HEADER_BYTES + address.length
            try:
                read_frame_at(files, address)
            except DejaqError as error:
                broken[error.message] += 1
    finally:
        files.close()
    problems += (f"cannot read {count} runs: {message}" for message, count in broken.items())
    if found != _log_uses(database):
        problems.append("the counts of runs in the files of the commit log are wrong")
    return sum(frames for frames, _ in found.values())


def _meta(database: Rdict, name: bytes) -> bytes | None:
    found: bytes | None = database.get(keys.META + name)
    return found


def _check_directory(path: Path) -> None:
    if not (path / "db").is_dir():
        raise error_of(Code.INVALID_ARGUMENT, f"{path} is not a broker's data directory: it has no db")


@contextmanager
def _read_only(path: Path) -> Iterator[Rdict]:
    try:
        database = Rdict(str(path / "db"), options=Options(raw_mode=True), access_type=AccessType.read_only())
    except Exception as cause:  # noqa: BLE001
        raise open_error(path / "db", cause) from None
    try:
        yield database
    finally:
        database.close()


@contextmanager
def _unused(path: Path) -> Iterator[None]:
    """Take the lock of the database, so that no broker starts meanwhile."""
    with (path / "db" / "LOCK").open("a") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise error_of(Code.STORE_LOCKED, f"a broker uses {path}; stop it, or inspect it instead") from None
        try:
            yield
        finally:
            with suppress(OSError):
                fcntl.lockf(file, fcntl.LOCK_UN)
