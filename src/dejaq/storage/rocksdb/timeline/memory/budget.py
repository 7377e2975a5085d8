"""The memory for the rows of all topics: its limit, and how much of it runs, leases and what finds other rows take.

Counted is what a run really takes, with the Python objects that belong to it: a run of one row takes fifteen times its
size on disk. The figures are those of Python 3.11 on Linux; a test compares them with the growth of a process.
"""

from __future__ import annotations

from dataclasses import dataclass

from dejaq import limits
from dejaq.storage.rocksdb.timeline.run import Run

# What must leave next is read in its order even if the memory is used up; this much of it.
RESERVE_BYTES = 8 * 1024 * 1024
# A run without its columns: the object, its key, its place in the window, and the objects of its columns.
_RUN_BYTES = 1_900
# The columns of a run that was read from disk, per row: the decoder copies each body and each id.
_ROW_BYTES, _ID_BYTES = 45, 43
# Each row but the first of a run whose rows wait one by one: its place in a bucket, with the numbers there.
_NEAR_ROW_BYTES = 160
# Once they were leased, ids are also Python objects, and one text for the frame and the journal.
_ID_OBJECT_BYTES = 60
# What finds other rows may take this part of the limit in addition. What it takes beyond that is taken from the rows
# that are due soon but need not leave next, and is at most the other part of the limit.
_FREE_PART, _TAKEN_PART = 8, 2
# What is known of runs on disk is dropped beyond this part of the limit; a call of some thousand ids needs this much.
_KNOWN_PART, _KNOWN_BYTES_MIN = 8, 4 * 1024 * 1024
# What is known of one run, without its head and its rows.
_KNOWN_RUN_BYTES = 620
# A wide run; a piece of a merge; a run whose rows a merge moved.
WIDE_BYTES, PIECE_BYTES, SOURCE_BYTES = 510, 300, 250
# A lease, and each of its parts.
_LEASE_BYTES, _PART_BYTES, _LISTED_ROW_BYTES = 1_000, 450, 4


@dataclass(slots=True)
class Budget:
    """The limit for the memory of all windows together, and for the ids in the indexes of all topics."""

    bytes_max: int
    used: int = 0
    ids_max: int = limits.YOUNG_IDS_MAX
    ids: int = 0
    # What finds messages that are not due soon: prints of their ids, and where merged rows are.
    index: int = 0
    # What is known of runs on disk that were searched lately.
    known: int = 0

    def stats(self) -> dict[str, float]:
        """Numbers for the metrics."""
        return {
            "window_bytes": self.used,
            "id_index_bytes": self.index,
            "known_runs_bytes": self.known,
            "young_ids": self.ids,
        }

    @property
    def spent(self) -> bool:
        """Whether no more rows should be kept."""
        taken = max(0, self.index + self.known - self.bytes_max // _FREE_PART)
        return self.used >= self.bytes_max - min(taken, self.bytes_max // _TAKEN_PART)

    @property
    def exhausted(self) -> bool:
        """Whether only few rows of those that must leave next are read."""
        return self.used >= self.bytes_max + RESERVE_BYTES

    @property
    def knows_enough(self) -> bool:
        """Whether what is known of some run on disk should be dropped for that of another."""
        return self.known >= max(self.bytes_max // _KNOWN_PART, _KNOWN_BYTES_MIN)


def bytes_of_run(run: Run) -> int:
    """How much memory a run takes."""
    held = run.held
    if held < run.count:
        return _RUN_BYTES + held * (_ROW_BYTES + _ID_BYTES + _ID_OBJECT_BYTES + run.size // run.count)
    if run.block is not None or not held:
        # The ids are those of the index.
        return _RUN_BYTES + run.size + (_NEAR_ROW_BYTES * (run.count - 1) if run.is_small else 0)
    row = _ROW_BYTES
    if run.record.ids:
        length = len(run.record.ids[0])
        row += _ID_BYTES + 2 * length
        if run.has_id_objects:
            row += _ID_OBJECT_BYTES + 2 * length
    return _RUN_BYTES + run.size + held * row


def bytes_of_known_run(size: int) -> int:
    """How much memory the knowledge of a run on disk takes, with a head and a mask of so many bytes."""
    return _KNOWN_RUN_BYTES + size


def bytes_of_lease(parts: int, listed_rows: int = 0) -> int:
    """How much memory a lease with so many parts takes, which list so many rows, without the runs."""
    return _LEASE_BYTES + parts * _PART_BYTES + listed_rows * _LISTED_ROW_BYTES
