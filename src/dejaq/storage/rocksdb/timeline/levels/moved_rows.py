"""Where the rows of merged runs moved, so that the entries of their ids need not change.

An entry names the run in which an id arrived. A merge moves the rows of some runs into *pieces* that follow each other
in time. So from the number of a run and the time of a row, this finds the piece of each merge in which the row may be;
and if the rows of that piece were merged too, the piece of the next merge. A merge is forgotten when none of its pieces
is left and no merge of its pieces is needed.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import Batch, RocksDatabase
from dejaq.storage.rocksdb.timeline.levels.wide_runs import WideRun
from dejaq.storage.rocksdb.timeline.memory.budget import PIECE_BYTES, SOURCE_BYTES, Budget
from dejaq.storage.rocksdb.timeline.run import Run

Times = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
_Piece = tuple[int, int, int, bytes]
_Columns = tuple[Times, Times, Flags, Flags]

_PIECE = struct.Struct("<QQ")
# No time has more.
_TIME_BITS = 48


@dataclass(slots=True)
class _Merge:
    # The numbers of the runs whose rows it moved.
    sources: set[int] = field(default_factory=set)
    # The pieces as (first ts, number, last ts, key), in order, with the first times of all of them; and the longest
    # time that one covers.
    pieces: list[_Piece] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)
    length: int = 0
    # First and last times of the pieces, whether they exist, and whether their rows moved on; made when it is needed.
    columns: _Columns | None = None
    # The pieces that exist, or whose rows moved in a merge that is needed.
    needed: set[int] = field(default_factory=set)


class _Places(NamedTuple):
    """The pieces of all merges: times are behind the position of the merge, so that each column is in order."""

    order: dict[int, int]
    pieces: list[_Piece]
    firsts: Times
    lasts: Times
    # The latest end of a piece and those before it.
    reach: Times
    # Whether a piece exists, and whether rows of it moved on.
    exist: Flags
    moved: Flags


class MovedRows:
    """The merges of one topic."""

    def __init__(self, topic: int, database: RocksDatabase, exists: Callable[[int], bool], budget: Budget) -> None:
        """`exists` says whether a run with a number exists that was merged or may be merged."""
        self._topic, self._database, self.exists, self._budget = topic, database, exists, budget
        self._merges: dict[int, _Merge] = {}
        # The merges that moved rows of a run; the merge of a piece.
        self._merges_from: dict[int, list[int]] = {}
        self._merge_of: dict[int, int] = {}
        # Made when it is needed.
        self._places: _Places | None = None
        # The directory entries of the runs of generated ids whose rows moved.
        self._directory: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._merges)

    def __contains__(self, number: int) -> bool:
        """Whether rows of a run moved."""
        return number in self._merges_from

    def close(self) -> None:
        """Release the memory."""
        self._budget.index -= PIECE_BYTES * len(self._merge_of) + SOURCE_BYTES * len(self._merges_from)

    def load(self) -> None:
        """Read what moved; the runs that exist are known already."""
        for key, entry in self._scan(keys.MOVED):
            number, merge = keys.pair_of(key)
            self._enter_source(number, merge)
            if entry:
                self._directory[number] = entry
        for key, value in self._scan(keys.MERGED_PIECE):
            merge, number = keys.pair_of(key)
            first, last = _PIECE.unpack_from(value)
            if merge in self._merges:
                self._enter_piece(merge, number, first, last, value[_PIECE.size :])
        for entered in self._merges.values():
            entered.needed = {number for _, number, _, _ in entered.pieces if self.exists(number) or number in self}

    def _scan(self, table: bytes) -> Iterator[tuple[bytes, bytes]]:
        prefix = keys.of_topic(table, self._topic)
        return self._database.scan(prefix, keys.after(prefix))

    # Changing

    def add_source(self, batch: Batch, run: Run, merge: int) -> None:
        """Record that rows of a run move in a merge; the times of a run of generated ids are kept for its directory."""
        number, record = run.number, run.record
        if merge in self._merges_from.get(number, ()):
            return
        entry = b""
        if record.session:
            entry = keys.directory(self._topic, run.bucket, record.session, record.first)
            self._directory[number] = entry
            batch.put(keys.numbered(keys.MOVED_TIMES, self._topic, number), array("q", record.ts).tobytes())
        batch.put(keys.pair(keys.MOVED, self._topic, number, merge), entry)
        self._enter_source(number, merge)

    def add_piece(self, batch: Batch, merge: int, run: Run, wide: WideRun) -> None:
        """Enter a new piece of a merge whose sources are known, with where its rows lie."""
        value = _PIECE.pack(wide.first, wide.last) + run.key
        batch.put(keys.pair(keys.MERGED_PIECE, self._topic, merge, run.number), value)
        self._enter_piece(merge, run.number, wide.first, wide.last, run.key)
        self._merges[merge].needed.add(run.number)

    def removed(self, batch: Batch, number: int) -> None:
        """Record that a run has gone, from which rows moved or which is a piece."""
        self._changed(self._merge_of.get(number))
        if number in self._merges_from:
            return
        merge = self._merge_of.get(number)
        if merge is None:
            return
        needed = self._merges[merge].needed
        needed.discard(number)
        if not needed:
            self._drop(batch, merge)

    def _drop(self, batch: Batch, merge: int) -> None:
        """Forget a merge; and the runs whose rows it moved, unless they exist or other merges moved rows of them."""
        dropped = self._merges.pop(merge)
        self._changed(None)
        for _, number, _, _ in dropped.pieces:
            batch.delete(keys.pair(keys.MERGED_PIECE, self._topic, merge, number))
            del self._merge_of[number]
            self._budget.index -= PIECE_BYTES
        for number in dropped.sources:
            batch.delete(keys.pair(keys.MOVED, self._topic, number, merge))
            merges = self._merges_from[number]
            merges.remove(merge)
            if merges:
                continue
            del self._merges_from[number]
            self._budget.index -= SOURCE_BYTES
            self._changed(self._merge_of.get(number))
            entry = self._directory.pop(number, None)
            if entry is not None:
                batch.delete(keys.numbered(keys.MOVED_TIMES, self._topic, number))
            if not self.exists(number):
                if entry is not None:
                    batch.delete(entry)
                self.removed(batch, number)

    def _enter_source(self, number: int, merge: int) -> None:
        if number not in self._merges_from:
            self._budget.index += SOURCE_BYTES
        self._merges_from.setdefault(number, []).append(merge)
        self._merges.setdefault(merge, _Merge()).sources.add(number)
        self._changed(self._merge_of.get(number))

    def _enter_piece(self, merge: int, number: int, first: int, last: int, key: bytes) -> None:
        entered = self._merges[merge]
        insort(entered.pieces, (first, number, last, key))
        insort(entered.firsts, first)
        entered.length = max(entered.length, last - first)
        self._merge_of[number] = merge
        self._budget.index += PIECE_BYTES
        self._changed(merge)

    # Searching

    def runs_of(self, number: int, ts: int) -> list[bytes]:
        """The keys of the pieces that may have a row that arrived in a run, at a time."""
        found: list[bytes] = []
        merges_from, exists = self._merges_from, self.exists
        left = [number]
        while left:
            for merge in merges_from.get(left.pop(), ()):
                entered = self._merges[merge]
                earliest = ts - entered.length
                for at in range(bisect_right(entered.firsts, ts) - 1, -1, -1):
                    first, piece, last, key = entered.pieces[at]
                    if first < earliest:
                        break
                    if last >= ts:
                        if exists(piece):
                            found.append(key)
                        left.append(piece)
        return found

    def runs_of_rows(self, numbers: Sequence[int], times: Times) -> tuple[list[int], list[bytes]]:
        """The same for many rows: pairs of a position among them and the key of a piece."""
        places, merges_from = self._places_of_all(), self._merges_from
        rows: list[int] = []
        found: list[bytes] = []
        left: Sequence[int] = range(len(numbers))
        while left:
            merges = [merges_from.get(number, ()) for number in numbers]
            at = np.array([row for row, known in zip(left, merges, strict=True) for _ in known], dtype=np.int64)
            order = np.array([places.order[merge] for known in merges for merge in known], dtype=np.int64)
            wanted = (order << _TIME_BITS) + times[at]
            left, numbers = [], []
            behind = places.firsts.searchsorted(wanted, side="right") - 1
            # The piece that begins last, and those before it as long as one of them ends late enough.
            while len(at):
                near = (behind >= 0) & (places.reach.take(behind, mode="clip") >= wanted)
                at, wanted, behind = at[near], wanted[near], behind[near]
                hits = places.lasts[behind] >= wanted
                there, on = hits & places.exist[behind], hits & places.moved[behind]
                rows += at[there].tolist()
                found += [places.pieces[place][3] for place in behind[there].tolist()]
                left += at[on].tolist()
                numbers += [places.pieces[place][1] for place in behind[on].tolist()]
                behind = behind - 1
        return rows, found

    def _places_of_all(self) -> _Places:
        if self._places is None:
            merges = list(self._merges.values())
            parts = [merge.columns or self._columns_of(merge) for merge in merges]
            order = np.arange(len(merges)).repeat([len(merge.pieces) for merge in merges]) << _TIME_BITS
            firsts, lasts, exist, moved = (np.concatenate(column) for column in zip(*parts, strict=True))
            lasts = lasts + order
            self._places = _Places(
                order=dict(zip(self._merges, count())),
                pieces=list(chain.from_iterable([merge.pieces for merge in merges])),
                firsts=firsts + order,
                lasts=lasts,
                reach=np.maximum.accumulate(lasts),
                exist=exist,
                moved=moved,
            )
        return self._places

    def _columns_of(self, merge: _Merge) -> _Columns:
        firsts, numbers, lasts, _ = zip(*merge.pieces, strict=True)
        exist, moved = map(self.exists, numbers), map(self._merges_from.__contains__, numbers)
        merge.columns = (
            np.array(firsts, dtype=np.int64),
            np.array(lasts, dtype=np.int64),
            np.array(list(exist), dtype=np.bool_),
            np.array(list(moved), dtype=np.bool_),
        )
        return merge.columns

    def _changed(self, merge: int | None) -> None:
        """The pieces of a merge are others now, or what is known of them."""
        self._places = None
        if merge is not None and merge in self._merges:
            self._merges[merge].columns = None

    def time_of(self, number: int, row: int) -> int | None:
        """The time of a row of a run of generated ids whose rows moved."""
        packed = self._database.get(keys.numbered(keys.MOVED_TIMES, self._topic, number))
        if packed is None:
            return None
        return int.from_bytes(packed[8 * row : 8 * row + 8], "little")
