"""A thin wrapper around rocksdict that keeps to what works.

rocksdict 0.3.29 has four silent defects; each is avoided here and has a regression test:
1. `ReadOptions.set_iterate_lower_bound` sets the upper bound: scans seek to their first key instead.
2. An upper bound dangles once its ReadOptions is dropped: scans compare keys and set no bound.
3. A snapshot's iterators ignore the snapshot: none is used; an iterator keeps the view of its creation.
4. `close()` fails, and the lock stays, while a call or an iterator lives: scans are finished or dropped first.

A write returns when the operating system has it; `sync` makes everything written before it durable. Writes hold
the GIL and are short; `sync` releases it and runs in a thread.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    RdictIter,
    WriteBatch,
    WriteOptions,
)

from dejaq.errors import Code, StoreError, error_of

Batch = WriteBatch

_CACHE_BYTES = 64 * 1024 * 1024
# The number that RocksDB has unless it is told another.
_LEVELS = 7


# To give the GIL away and take it back costs more than to read so many keys.
_FEW_KEYS = 4


def new_batch() -> WriteBatch:
    """An empty atomic batch of puts and deletes of raw bytes."""
    return WriteBatch(raw_mode=True)


class Database:
    """One RocksDB directory, with raw keys and values."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._db = Rdict(str(path), options=_options())
        except Exception as cause:  # noqa: BLE001  rocksdict raises plain Exception
            raise open_error(path, cause) from None
        self._write_options = WriteOptions()

    def get(self, key: bytes) -> bytes | None:
        """The value, or None."""
        try:
            value: bytes | None = self._db.get(key)
        except Exception as cause:  # noqa: BLE001
            raise read_error(self.path, cause) from None
        return value

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values in the order of the keys; the GIL is free meanwhile, unless they are few."""
        if not keys:
            return []
        try:
            if len(keys) <= _FEW_KEYS:
                return [self._db.get(key) for key in keys]
            values: list[bytes | None] = self._db.get(list(keys))  # type: ignore[assignment]
        except Exception as cause:  # noqa: BLE001
            raise read_error(self.path, cause) from None
        return values

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values with start <= key < end, ascending, as they were at the first step."""
        iterator = self._db.iter()
        try:
            iterator.seek(start)
            while iterator.valid():
                key: bytes = iterator.key()
                if key >= end:
                    return
                yield key, iterator.value()
                iterator.next()
            fault = _fault(iterator)
        finally:
            # An error on its way up must not keep the iterator, and with it the lock of the directory.
            del iterator
        if fault:
            raise read_error(self.path, fault)

    def scan_keys(self, start: bytes, end: bytes) -> Iterator[bytes]:
        """Keys only: values stay where they are."""
        iterator = self._db.iter()
        try:
            iterator.seek(start)
            while iterator.valid():
                key: bytes = iterator.key()
                if key >= end:
                    return
                yield key
                iterator.next()
            fault = _fault(iterator)
        finally:
            del iterator
        if fault:
            raise read_error(self.path, fault)

    def first_key(self, start: bytes, end: bytes) -> bytes | None:
        """The smallest key with start <= key < end."""
        return next(self.scan_keys(start, end), None)

    def last_item(self, start: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        """The greatest key with start <= key <= end, and its value."""
        with self.seeking() as last_item:
            return last_item(start, end)

    @contextmanager
    def seeking(self) -> Iterator[Callable[[bytes, bytes], tuple[bytes, bytes] | None]]:
        """`last_item` for many looks at one view of the database, which is made at the first."""
        iterator: RdictIter | None = None

        def last_item(start: bytes, end: bytes) -> tuple[bytes, bytes] | None:
            nonlocal iterator
            if iterator is None:
                iterator = self._db.iter()
            iterator.seek_for_prev(end)
            item = (iterator.key(), iterator.value()) if iterator.valid() else None
            fault = _fault(iterator)
            if fault:
                raise read_error(self.path, fault)
            return item if item is not None and item[0] >= start else None

        try:
            yield last_item
        finally:
            # An error on its way up must not keep the iterator, and with it the lock of the directory.
            iterator = None

    def view(self) -> View:
        """Everything as it is now, to be read later."""
        return View(self.path, self._db.iter())

    def write(self, batch: WriteBatch) -> None:
        """Write atomically; durable after the next `sync`."""
        self._db.write(batch, self._write_options)

    def sync(self) -> None:
        """Make every earlier write durable. Blocks; call it in a thread."""
        self._db.flush_wal(True)

    @property
    def sequence(self) -> int:
        """The number of the last write."""
        return self._db.latest_sequence_number()

    def flush(self) -> None:
        """Write the memtable to a table file."""
        self._db.flush()

    def compact(self, start: bytes, end: bytes) -> None:
        """Reclaim the space of what was deleted between the keys. Blocks; call it in a thread."""
        self._db.compact_range(start, end)

    def close(self) -> None:
        """Close and release the lock. Nothing else may be inside a call."""
        gc.collect()
        self._db.close()


class View:
    """The database as it was at one moment. Holds it open: close every view before the database."""

    def __init__(self, path: Path, iterator: RdictIter) -> None:
        self._path = path
        self._iterator: RdictIter | None = iterator

    def items(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values with start <= key < end. One at a time: the next call moves the same iterator."""
        if self._iterator is None:
            raise error_of(Code.NOT_FOUND, "the snapshot is closed; open another")
        iterator = self._iterator
        iterator.seek(start)
        while iterator.valid():
            key: bytes = iterator.key()
            if key >= end:
                return
            yield key, iterator.value()
            iterator.next()
        fault = _fault(iterator)
        if fault:
            raise read_error(self._path, fault)

    def get(self, key: bytes) -> bytes | None:
        """The value, or None."""
        return next((value for _, value in self.items(key, key + b"\0")), None)

    def close(self) -> None:
        """Let go."""
        self._iterator = None


def _fault(iterator: RdictIter) -> str:
    """Why an iterator ended before its time, or nothing."""
    try:
        iterator.status()
    except Exception as cause:  # noqa: BLE001
        return str(cause)
    return ""


def open_error(path: Path, cause: Exception) -> StoreError:
    """What a failure to open means to an operator."""
    text = str(cause)
    if "/LOCK" in text:
        code, advice = Code.STORE_LOCKED, "stop the other broker or choose another --data"
    elif "orruption" in text or "checksum" in text or "No such file" in text or "CURRENT" in text:
        code, advice = Code.STORE_CORRUPT, "restore it from a backup; nothing was changed"
    else:
        code, advice = Code.STORE_FAILED, "correct the cause and start again"
    error = error_of(code, f"cannot open the data directory {path}: {advice}", details=text)
    assert isinstance(error, StoreError)
    return error


def read_error(path: Path, cause: object) -> StoreError:
    """What a failure to read means."""
    code = Code.STORE_CORRUPT if "orruption" in str(cause) else Code.STORE_FAILED
    error = error_of(code, f"cannot read from {path}", details=str(cause))
    assert isinstance(error, StoreError)
    return error


def _options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_paranoid_checks(True)
    # A torn last record is what a power cut leaves of an unacknowledged write. Anything else is damage, and is
    # refused; the watermark finds a log that ends too early.
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    # Most of what leaves the memtable is gone before it reaches the second level, and is not worth packing.
    lz4 = DBCompressionType.lz4()
    options.set_compression_per_level([DBCompressionType.none(), *[lz4] * (_LEVELS - 1)])
    options.set_write_buffer_size(64 * 1024 * 1024)
    options.set_max_write_buffer_number(3)
    options.set_max_background_jobs(2)
    options.set_level_compaction_dynamic_level_bytes(True)
    # Runs are short-lived; files dense with deletions are compacted early so that scans need not step over them.
    options.add_compact_on_deletion_collector_factory(10_000, 5_000, 0.5)
    # Most ids that are looked for are not there; filters say so for half the cost (1.7 to 0.8 us an id).
    tables = BlockBasedOptions()
    tables.set_bloom_filter(10, False)
    tables.set_block_cache(Cache(_CACHE_BYTES))
    options.set_block_based_table_factory(tables)
    options.set_memtable_whole_key_filtering(True)
    options.set_memtable_prefix_bloom_ratio(0.05)
    options.set_max_open_files(512)
    options.set_keep_log_file_num(4)
    options.set_max_log_file_size(4 * 1024 * 1024)
    options.set_stats_dump_period_sec(0)
    return options
