"""A thin wrapper around rocksdict that keeps to what works.

rocksdict 0.3.29 has four silent defects; each is avoided here and has a regression test:
1. `ReadOptions.set_iterate_lower_bound` sets the upper bound: scans seek to their first key instead.
2. An upper bound dangles once its ReadOptions is dropped: scans compare keys and set no bound.
3. A snapshot's iterators ignore the snapshot: none is used; an iterator keeps the view of its creation.
4. `close()` fails, and the lock stays, while a call or an iterator lives: scans are finished or dropped first.

The database contains only changes that the commit log has made durable. Therefore it is written without a log of its
own; `applied` is the last record of the commit log that it contains. Changes that it does not contain yet are in the
`overlay`, which every read consults first. Writes hold the GIL and are short.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from weakref import WeakSet

from rocksdict import Checkpoint, Rdict, RdictIter, WriteBatch, WriteOptions

from dejaq.errors import Code, DejaqError, StoreError, error_of
from dejaq.storage.commit_log.operations import DELETE, PUT, Operations
from dejaq.storage.commit_log.record import FrameAddress
from dejaq.storage.rocksdb.bodies.sealed_values import SealedValues
from dejaq.storage.rocksdb.engine.frames import FrameSource, address_in
from dejaq.storage.rocksdb.engine.overlay import Overlay, Unknown, merged
from dejaq.storage.rocksdb.engine.recording import RecordedBatch
from dejaq.storage.rocksdb.options import database_options, scan_options

# To give the GIL away and take it back costs more than to read so many keys.
_FEW_KEYS = 4
# A seek costs as much as so many steps to the next key.
_STEPS_TO_NEXT = 4
# What one write of a replay has about.
_REPLAY_BYTES = 1024 * 1024
_APPLIED = b"mapplied"


Batch = RecordedBatch


def new_batch() -> Batch:
    """An empty batch."""
    return Batch()


class RocksDatabase:
    """One RocksDB directory, with raw keys and values."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # Set by the store: called for every read that failed, and for each frame that was copied out of the log.
        self.on_fault: Callable[[StoreError], None] = lambda error: None
        self.on_moved: Callable[[bytes], None] = lambda key: None
        try:
            self._db = Rdict(str(path), options=database_options())
        except Exception as cause:  # noqa: BLE001  rocksdict raises plain Exception
            raise open_error(path, cause) from None
        self._write_options = WriteOptions()
        # The type stubs of rocksdict declare a method; it is an attribute.
        self._write_options.disable_wal = True  # type: ignore[assignment, method-assign]
        self._scan_options = scan_options()
        # Where parts of frames are read to; each reader is done with them before it returns.
        self.buffer = bytearray()
        # Changes that are not in the database yet.
        self.overlay = Overlay()
        # The form of the values of runs and bodies.
        self.values = SealedValues()
        # The commit log, once there is one.
        self.log: FrameSource | None = None
        self.log_path: Path | None = None
        # Views that may be open; files of the log that exist at their creation stay until they are closed.
        self.views: WeakSet[View] = WeakSet()

    def get(self, key: bytes) -> bytes | None:
        """The value, or None."""
        pending = self.overlay.find(key)
        return self._stored(key) if isinstance(pending, Unknown) else pending

    def _stored(self, key: bytes) -> bytes | None:
        try:
            value: bytes | None = self._db.get(key)
        except Exception as cause:  # noqa: BLE001
            raise self.fault(cause) from None
        return value

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values in the order of the keys; the GIL is free meanwhile, unless they are few."""
        if not keys:
            return []
        if self.overlay.empty or not any(map(self.overlay.touches, {key[0] for key in keys})):
            return self._stored_many(keys)
        found = [self.overlay.find(key) for key in keys]
        unknown = [key for key, value in zip(keys, found, strict=True) if isinstance(value, Unknown)]
        stored = iter(self._stored_many(unknown) if unknown else ())
        return [next(stored) if isinstance(value, Unknown) else value for value in found]

    def _stored_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        try:
            if len(keys) <= _FEW_KEYS:
                return [self._db.get(key) for key in keys]
            values: list[bytes | None] = self._db.get(list(keys))  # type: ignore[assignment]
        except Exception as cause:  # noqa: BLE001
            raise self.fault(cause) from None
        return values

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values with start <= key < end, ascending, as they were at the first step."""
        stored = self.scan_applied(start, end)
        if not self._touches(start, end):
            return stored
        return self._merged(stored, start, end)

    def _merged(self, stored: Iterator[tuple[bytes, bytes]], start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        overlay = self.overlay
        yield from merged(stored, overlay.between(start, end), overlay.ranges)

    def scan_applied(self, start: bytes, end: bytes) -> Generator[tuple[bytes, bytes], None, None]:
        """The same without the changes that are not in the database yet."""
        iterator = self._db.iter(self._scan_options)
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
            raise self.fault(fault)

    def scan_keys(self, start: bytes, end: bytes) -> Iterator[bytes]:
        """Keys only: values stay where they are."""
        stored = self._scan_stored_keys(start, end)
        if not self._touches(start, end):
            return stored
        return self._merged_keys(stored, start, end)

    def _merged_keys(self, stored: Iterator[bytes], start: bytes, end: bytes) -> Iterator[bytes]:
        overlay = self.overlay
        pairs = merged(((key, b"") for key in stored), overlay.between(start, end), overlay.ranges)
        yield from (key for key, _ in pairs)

    def _scan_stored_keys(self, start: bytes, end: bytes) -> Iterator[bytes]:
        iterator = self._db.iter(self._scan_options)
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
            raise self.fault(fault)

    def _touches(self, start: bytes, end: bytes) -> bool:
        overlay = self.overlay
        return not overlay.empty and any(map(overlay.touches, range(start[0], end[0] + 1)))

    def first_key(self, start: bytes, end: bytes) -> bytes | None:
        """The smallest key with start <= key < end."""
        if not self._touches(start, end):
            return next(self._scan_stored_keys(start, end), None)
        first = self.overlay.first(start, end)
        hides = self.overlay.hides
        stored = next((key for key in self._scan_stored_keys(start, first or end) if not hides(key)), None)
        return first if stored is None else stored

    def last_item(self, start: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        """The greatest key with start <= key <= end, and its value."""
        with self.seeking() as last_item:
            return last_item(start, end)

    @contextmanager
    def seeking(self) -> Iterator[Callable[[bytes, bytes], tuple[bytes, bytes] | None]]:
        """`last_item` for many looks at one view of the database, which is made at the first."""
        iterator: RdictIter | None = None

        def last_stored(start: bytes, end: bytes) -> tuple[bytes, bytes] | None:
            nonlocal iterator
            if iterator is None:
                iterator = self._db.iter(self._scan_options)
            iterator.seek_for_prev(end)
            while iterator.valid() and iterator.key() >= start and self.overlay.hides(iterator.key()):
                iterator.prev()
            item = (iterator.key(), iterator.value()) if iterator.valid() else None
            fault = _fault(iterator)
            if fault:
                raise self.fault(fault)
            return item if item is not None and item[0] >= start else None

        def last_item(start: bytes, end: bytes) -> tuple[bytes, bytes] | None:
            stored = last_stored(start, end)
            if not self._touches(start, end):
                return stored
            pending = self.overlay.last(start, end)
            return max((item for item in (stored, pending) if item is not None), default=None)

        try:
            yield last_item
        finally:
            # An error on its way up must not keep the iterator, and with it the lock of the directory.
            iterator = None

    def run_at(self, key: bytes, stored: bytes, overlay: Overlay | None = None) -> bytes:
        """The plain value of a run, which may be a frame of the log; raises STORE_CORRUPT where it is damaged."""
        return self.values.opened_run(key, self._value_of(stored, overlay))

    def _value_of(self, stored: bytes, overlay: Overlay | None) -> bytes:
        address = address_in(stored)
        if address is None:
            return stored
        frame = (overlay or self.overlay).frame(stored)
        if frame is not None:
            return frame
        assert self.log is not None
        try:
            return self.log.read(address)
        except StoreError as error:
            self.on_fault(error)
            raise

    def view(self) -> View:
        """Everything as it is now, to be read later."""
        made = View(
            self, self._db.iter(self._scan_options), self.overlay.copy(), 0 if self.log is None else self.log.number
        )
        self.views.add(made)
        return made

    def viewed(self, file: int) -> bool:
        """Whether an open view may read frames of a file of the log."""
        return any(view.reads(file) for view in list(self.views))

    def fault(self, cause: object) -> StoreError:
        """The error of a read that failed; `on_fault` is called with it."""
        error = read_error(self.path, cause)
        self.on_fault(error)
        return error

    def apply(self, changes: Operations, sequence: int) -> None:
        """Do the changes of a record of the commit log, atomically, together with its sequence."""
        batch = WriteBatch(raw_mode=True)
        _fill(batch, changes)
        self._write_applied(batch, sequence)

    def replay(self, records: Iterable[tuple[int, Operations]]) -> None:
        """Do the changes of many records, in a few writes."""
        batch, last = WriteBatch(raw_mode=True), None
        for sequence, changes in records:
            _fill(batch, changes)
            last = sequence
            if batch.size_in_bytes() >= _REPLAY_BYTES:
                self._write_applied(batch, sequence)
                batch, last = WriteBatch(raw_mode=True), None
        if last is not None:
            self._write_applied(batch, last)

    def _write_applied(self, batch: WriteBatch, sequence: int) -> None:
        batch.put(_APPLIED, sequence.to_bytes(8, "big"))
        self._db.write(batch, self._write_options)

    @property
    def applied(self) -> int | None:
        """The last record of the commit log that is in the database; None before there was a commit log."""
        found = self._stored(_APPLIED)
        return None if found is None else int.from_bytes(found, "big")

    def begin_log(self, changes: Operations, sequence: int) -> None:
        """Do changes durably, without a commit log: they say that there is one from now on, behind a sequence."""
        batch = WriteBatch(raw_mode=True)
        _fill(batch, changes)
        batch.put(_APPLIED, sequence.to_bytes(8, "big"))
        self._db.write(batch, WriteOptions())
        self._db.flush_wal(True)
        self._db.flush()

    @property
    def sequence(self) -> int:
        """The number of the last write."""
        return self._db.latest_sequence_number()

    def put_durably(self, key: bytes, value: bytes) -> None:
        """Set a key in the tables, before the commit log has a record that needs it."""
        self._db.put(key, value, self._write_options)
        self._db.flush()

    def flush(self) -> None:
        """Write the memtable to a table file."""
        self._db.flush()

    def checkpoint(self, path: Path) -> None:
        """Make another database of everything written so far, of links to the same tables. Call it in a thread."""
        # The last step holds the GIL while it writes to a table what was written since. The first flush takes long, so
        # a second one leaves little.
        self.flush()
        self.flush()
        Checkpoint(self._db).create_checkpoint(str(path))

    def compact(self, start: bytes, end: bytes) -> None:
        """Reclaim the space of what was deleted between the keys. Blocks; call it in a thread."""
        self._db.compact_range(start, end)

    def close(self) -> None:
        """Close and release the lock. Nothing else may be inside a call; queries between two steps get an error."""
        for view in list(self.views):
            view.close()
        gc.collect()
        self._db.close()


class View:
    """The database as it was at one moment. Holds it open: close every view before the database."""

    def __init__(self, database: RocksDatabase, iterator: RdictIter, overlay: Overlay, last_file: int) -> None:
        self._database = database
        self._iterator: RdictIter | None = iterator
        self._overlay = overlay
        self._last_file = last_file

    def run_at(self, key: bytes, stored: bytes) -> bytes:
        """The plain value of a run, of which the view may have a pointer."""
        return self._database.run_at(key, stored, self._overlay)

    def frame_at(self, stored: bytes) -> FrameAddress | None:
        """Where in the files of the log a run is, of which the view may have a pointer."""
        address = address_in(stored)
        return address if address is not None and self._overlay.frame(stored) is None else None

    def reads(self, file: int) -> bool:
        """Whether frames of a file of the log may be read."""
        return self._iterator is not None and file <= self._last_file

    def items(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values with start <= key < end. One at a time: the next call moves the same iterator."""
        if self._iterator is None:
            raise _closed_view()
        stored = self._stored(self._iterator, start, end)
        overlay = self._overlay
        return stored if overlay.empty else merged(stored, overlay.between(start, end), overlay.ranges)

    def _stored(self, iterator: RdictIter, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        iterator.seek(start)
        while iterator.valid():
            key: bytes = iterator.key()
            if key >= end:
                return
            yield key, iterator.value()
            iterator.next()
        fault = _fault(iterator)
        if fault:
            raise self._database.fault(fault)

    def get(self, key: bytes) -> bytes | None:
        """The value, or None."""
        return next((value for _, value in self.items(key, key + b"\0")), None)

    def get_sorted(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each key, or None. The keys ascend, so that the iterator moves on from one to the next."""
        iterator, overlay, found = self._iterator, self._overlay, list[bytes | None]()
        if iterator is None:
            raise _closed_view()
        # Where the iterator is; empty before its first move, and None behind the last key.
        at: bytes | None = b""
        for key in keys:
            pending = overlay.find(key)
            if not isinstance(pending, Unknown):
                found.append(pending)
                continue
            for _ in range(_STEPS_TO_NEXT if at else 0):
                if at is None or at >= key:
                    break
                iterator.next()
                at = self._key_at(iterator)
            if at is not None and at < key:
                iterator.seek(key)
                at = self._key_at(iterator)
            found.append(iterator.value() if at == key else None)
        return found

    def _key_at(self, iterator: RdictIter) -> bytes | None:
        if iterator.valid():
            key: bytes = iterator.key()
            return key
        fault = _fault(iterator)
        if fault:
            raise self._database.fault(fault)
        return None

    def close(self) -> None:
        """Let go."""
        self._iterator = None


def _closed_view() -> DejaqError:
    return error_of(Code.NOT_FOUND, "the snapshot is closed; open another")


def _fill(batch: WriteBatch, changes: Operations) -> None:
    """Put changes into a batch of RocksDB."""
    put, parts = batch.put, changes.parts
    if not any(changes.kinds):
        for key, value in zip(parts[::2], parts[1::2], strict=True):
            put(key, value)
        return
    for kind, key, value in changes:
        if kind == PUT:
            put(key, value)
        elif kind == DELETE:
            batch.delete(key)
        else:
            batch.delete_range(key, value)


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
    elif _tells_of_damage(text) or "CURRENT" in text:
        code, advice = Code.STORE_CORRUPT, "restore it from a backup; nothing was changed"
    else:
        code, advice = Code.STORE_FAILED, "correct the cause and start again"
    error = error_of(code, f"cannot open the data directory {path}: {advice}", details=text)
    assert isinstance(error, StoreError)
    return error


def read_error(path: Path, cause: object) -> StoreError:
    """What a failure to read means."""
    return _error_of_disk(f"cannot read from {path}", cause)


def write_error(path: Path, cause: object) -> StoreError:
    """What a failure to write or to sync means."""
    return _error_of_disk(f"cannot write to {path}", cause)


def _error_of_disk(message: str, cause: object) -> StoreError:
    code = Code.STORE_CORRUPT if _tells_of_damage(str(cause)) else Code.STORE_FAILED
    error = error_of(code, message, details=str(cause))
    assert isinstance(error, StoreError)
    return error


def _tells_of_damage(text: str) -> bool:
    """Whether RocksDB speaks of damaged or missing files; it has no codes."""
    return "orruption" in text or "checksum" in text or "No such file" in text
