"""The pieces of entries of a sorted run: frames of the commit log, of which a search reads single pieces.

A frame has the pieces of one step of a merge. Under the number of its first piece, the database has a pointer to it and
the checksums of its pieces. Pieces of older releases, of small frames, and of frames that were moved out of the log are
records of the database.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from isal.isal_zlib import crc32

from dejaq.errors import Code, StoreError, error_of
from dejaq.storage.commit_log.record import FRAME_HEADER_BYTES, FrameAddress
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import Batch, RocksDatabase
from dejaq.storage.rocksdb.engine.frames import (
    FRAME_BYTES_MIN,
    NewFrame,
    address_in,
    behind_pointer,
    pack_checks,
    pointer_to,
    unpack_checks,
)
from dejaq.storage.rocksdb.timeline.ids.columns import Rows
from dejaq.storage.rocksdb.timeline.ids.hashing import Numbers

# A place in a file has fewer bits; the number of the file is above them.
_OFFSET_BITS = 40
_WORD_BYTES = 8

_Checks = npt.NDArray[np.uint32]


class RunPieces:
    """Where the pieces of one run are."""

    def __init__(self, topic: int, number: int, piece_bytes: int, pieces_max: int) -> None:
        self.topic, self.number, self._piece_bytes = topic, number, piece_bytes
        # Of each piece its place in the files of the log, or 0 where that is not known, and its checksum.
        self.origins: Rows = np.zeros(pieces_max, dtype=np.int64)
        self.checks: _Checks = np.zeros(pieces_max, dtype=np.uint32)
        # Frames that may not be in a file yet, by their first pieces, in order.
        self._new: dict[int, NewFrame] = {}
        # How many pieces a frame has, by the first.
        self._frames: dict[int, int] = {}
        self._count = 0

    @property
    def memory_bytes(self) -> int:
        """The memory of what is known of the pieces that were added."""
        return self._count * (self.origins.itemsize + self.checks.itemsize)

    def add(self, batch: Batch, data: bytes) -> None:
        """Write the next pieces, each of the same size, but the last one of the run."""
        size, first = self._piece_bytes, self._count
        view = memoryview(data)
        pieces = [view[start : start + size] for start in range(0, len(data), size)]
        self._count += len(pieces)
        if len(data) < FRAME_BYTES_MIN:
            for number, piece in enumerate(pieces, first):
                batch.put(keys.pair(keys.ID_PIECE, self.topic, self.number, number), bytes(piece))
            return
        self._frames[first] = len(pieces)
        checks = list(map(crc32, pieces))
        self.checks[first : self._count] = checks
        key = keys.pair(keys.ID_FRAME, self.topic, self.number, first)
        self._new[first] = batch.put_frame(key, data, self.topic, pack_checks(size, checks))

    def load(self, database: RocksDatabase) -> None:
        """Read where the pieces of a complete run are."""
        self._count = len(self.origins)
        start = keys.numbered(keys.ID_FRAME, self.topic, self.number)
        for key, value in database.scan(start, keys.after(start)):
            first, address = keys.pair_of(key)[1], address_in(value)
            assert address is not None
            _, checks = unpack_checks(behind_pointer(value))
            self._frames[first] = len(checks)
            self.checks[first : first + len(checks)] = checks
            self._place(first, address)

    def _place(self, first: int, address: FrameAddress) -> None:
        origin = address.file << _OFFSET_BITS | address.offset + FRAME_HEADER_BYTES
        count = self._frames[first]
        self.origins[first : first + count] = origin + self._piece_bytes * np.arange(count)

    def moved(self, first: int) -> None:
        """Record that the pieces of a frame are records of the database now."""
        self._new.pop(first, None)
        self.origins[first : first + self._frames.pop(first, 0)] = 0

    def settle(self, database: RocksDatabase) -> bool:
        """Find the places of frames that are in a file by now; whether all are."""
        for first, frame in list(self._new.items()):
            if frame.address is None or database.overlay.frame(pointer_to(frame.address)) is not None:
                return False
            del self._new[first]
            self._place(first, frame.address)
        return True

    def pending(self, database: RocksDatabase, piece: int) -> bytes | None:
        """A piece of a frame that is not in a file yet."""
        for first, frame in self._new.items():
            data = None if frame.address is None else database.overlay.frame(pointer_to(frame.address))
            start = (piece - first) * self._piece_bytes
            if data is not None and 0 <= start < len(data):
                return data[start : start + self._piece_bytes]
        return None


class WantedPieces(NamedTuple):
    """Pieces of some runs: which run, the number of the piece, its bytes, its place in the log, and its checksum."""

    of_runs: Rows
    pieces: Rows
    sizes: Rows
    origins: Rows
    checks: _Checks


class PiecesRead(NamedTuple):
    """Pieces as words, and where each of them begins. The words are valid until the next read."""

    words: Numbers
    begins: Rows

    @classmethod
    def of(cls, data: bytes | bytearray, sizes: Rows) -> PiecesRead:
        """Pieces of so many bytes that follow each other."""
        ends = np.cumsum(sizes) // _WORD_BYTES
        return cls(np.frombuffer(data, dtype="<u8", count=int(ends[-1])), ends - sizes // _WORD_BYTES)


def read_pieces(database: RocksDatabase, runs: Sequence[RunPieces], wanted: WantedPieces) -> PiecesRead:
    """Pieces of runs whose places were looked for before."""
    in_file = np.flatnonzero(wanted.origins)
    # In the order of the files.
    in_file = in_file[np.argsort(wanted.origins[in_file], kind="stable")]
    parts = _read(database, wanted, in_file)
    if len(parts) == len(wanted.origins):
        read = PiecesRead.of(database.buffer, wanted.sizes[in_file])
        begins = np.empty_like(read.begins)
        begins[in_file] = read.begins
        return read._replace(begins=begins)
    values = dict(zip(in_file.tolist(), map(bytes, parts), strict=True))
    left = [
        (at, runs[wanted.of_runs[at]], int(wanted.pieces[at])) for at in np.flatnonzero(wanted.origins == 0).tolist()
    ]
    values |= {at: data for at, run, piece in left if (data := run.pending(database, piece)) is not None}
    names = {at: keys.pair(keys.ID_PIECE, run.topic, run.number, piece) for at, run, piece in left if at not in values}
    values |= zip(names, (value or b"" for value in database.get_many(list(names.values()))), strict=True)
    listed = [values[at] for at in range(len(wanted.origins))]
    if list(map(len, listed)) != wanted.sizes.tolist():
        raise _damaged(database, "pieces of entries of ids are not in the database")
    return PiecesRead.of(b"".join(listed), wanted.sizes)


def _read(database: RocksDatabase, wanted: WantedPieces, at: Rows) -> list[memoryview]:
    """Read those that are in files of the log into the buffer, one behind the other, and verify them."""
    if not len(at):
        return []
    origins, sizes = wanted.origins[at], wanted.sizes[at]
    ends = np.cumsum(sizes)
    if len(database.buffer) < ends[-1]:
        database.buffer = bytearray(int(ends[-1]))
    view = memoryview(database.buffer)
    parts = [view[start:end] for start, end in zip((ends - sizes).tolist(), ends.tolist(), strict=True)]
    files, offsets = origins >> _OFFSET_BITS, origins & (1 << _OFFSET_BITS) - 1
    assert database.log is not None
    try:
        read = database.log.read_parts(files.tolist(), offsets.tolist(), parts)
    except StoreError as error:
        database.on_fault(error)
        raise
    checks = list(map(crc32, parts))
    if read != sizes.tolist() or checks != wanted.checks[at].tolist():
        wrong = (np.array(read) != sizes) | (np.array(checks) != wanted.checks[at])
        number = int(np.flatnonzero(wrong)[0])
        raise _damaged(database, f"entries of ids at {offsets[number]} of file {files[number]} of the log")
    return parts


def _damaged(database: RocksDatabase, where: str) -> StoreError:
    message = f"{database.path.parent} is damaged; restore it from a backup"
    damaged = error_of(Code.STORE_CORRUPT, message, details=where)
    assert isinstance(damaged, StoreError)
    database.on_fault(damaged)
    return damaged
