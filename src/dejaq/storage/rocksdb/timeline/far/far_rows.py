"""Rows of runs that are only on disk, as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from dejaq.domain.bodies.body_block import BodyBlock
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.timeline.far.stored_run import StoredRun
from dejaq.storage.rocksdb.timeline.ids.hashing import Numbers, bucket_column

Value = TypeVar("Value")
Column = npt.NDArray[np.int64]
_NOTHING: Column = np.zeros(0, dtype=np.int64)
_NO_HASHES: Numbers = np.zeros(0, dtype=np.uint64)


class FoundRows(NamedTuple):
    """Rows that were found: their positions among those that were looked for, and their numbers in their runs.

    Priorities and headers are empty if no row has one.
    """

    at: Column
    rows: Column
    bodies: Sequence[bytes]
    priorities: Sequence[int] = ()
    headers: Sequence[bytes] = ()


def joined_rows(parts: Sequence[FoundRows]) -> FoundRows:
    """All rows of some parts."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return FoundRows(_NOTHING, _NOTHING, ())
    return FoundRows(
        np.concatenate([part.at for part in parts]),
        np.concatenate([part.rows for part in parts]),
        _joined_bodies([part.bodies for part in parts]),
        _joined([(part.priorities, len(part.at)) for part in parts], 0),
        _joined([(part.headers, len(part.at)) for part in parts], b""),
    )


def _joined(columns: Sequence[tuple[Sequence[Value], int]], nothing: Value) -> list[Value]:
    if not any(column for column, _ in columns):
        return []
    return list(chain.from_iterable(column or [nothing] * count for column, count in columns))


def _joined_bodies(columns: Sequence[Sequence[bytes]]) -> Sequence[bytes]:
    blocks = [column for column in columns if isinstance(column, BodyBlock)]
    size = blocks[0].size if blocks else None
    if size is not None and len(blocks) == len(columns) and all(block.size == size for block in blocks):
        return BodyBlock.of_equal(b"".join([block.data for block in blocks]), sum(map(len, blocks)), size)
    return [body for column in columns for body in column]


@dataclass(slots=True)
class FarRows:
    """Rows that were never leased, by ids: the positions of the ids, and the run of each row.

    `versions` are also the numbers of the runs in which the rows arrived. Priorities and headers are empty if no row
    has one.
    """

    items: Column
    runs: Sequence[StoredRun] = ()
    of_runs: Column = field(default_factory=_NOTHING.copy)
    rows: Column = field(default_factory=_NOTHING.copy)
    times: Column = field(default_factory=_NOTHING.copy)
    versions: Numbers = field(default_factory=_NO_HASHES.copy)
    hashes: Numbers = field(default_factory=_NO_HASHES.copy)
    bodies: Sequence[bytes] = ()
    priorities: Sequence[int] = ()
    headers: Sequence[bytes] = ()

    def __len__(self) -> int:
        return len(self.items)

    def picked(self, at: Column) -> FarRows:
        """The rows at some positions."""
        chosen = at.tolist()
        return FarRows(
            items=self.items[at],
            runs=self.runs,
            of_runs=self.of_runs[at],
            rows=self.rows[at],
            times=self.times[at],
            versions=self.versions[at],
            hashes=self.hashes[at],
            bodies=picked_bodies(self.bodies, at),
            priorities=[self.priorities[row] for row in chosen] if self.priorities else (),
            headers=[self.headers[row] for row in chosen] if self.headers else (),
        )

    def owners(self) -> Column:
        """The number of the owner of each row."""
        return np.array([run.owner for run in self.runs], dtype=np.int64)[self.of_runs]

    def buckets(self, count: int) -> Column:
        """The bucket of each row in a topic with so many buckets."""
        of_runs = np.array([run.bucket for run in self.runs], dtype=np.int64)[self.of_runs]
        return np.where(of_runs == keys.SPREAD, bucket_column(self.hashes, count).astype(np.int64), of_runs)


NO_ROWS = FarRows(_NOTHING)


class FoundAhead(NamedTuple):
    """What was found for these ids before they are changed; all of it has to be looked at again."""

    ids: Sequence[str]
    rows: FarRows


def joined_far(parts: Sequence[FarRows]) -> FarRows:
    """All rows of some parts."""
    if len(parts) == 1:
        return parts[0]
    sizes = [len(part.runs) for part in parts]
    found = joined_rows(
        [FoundRows(part.items, part.rows, part.bodies, part.priorities, part.headers) for part in parts]
    )
    return FarRows(
        items=found.at,
        runs=list(chain.from_iterable(part.runs for part in parts)),
        of_runs=np.concatenate([part.of_runs + sum(sizes[:number]) for number, part in enumerate(parts)]),
        rows=found.rows,
        times=np.concatenate([part.times for part in parts]),
        versions=np.concatenate([part.versions for part in parts]),
        hashes=np.concatenate([part.hashes for part in parts]),
        bodies=found.bodies,
        priorities=found.priorities,
        headers=found.headers,
    )


def picked_bodies(bodies: Sequence[bytes], at: Column) -> Sequence[bytes]:
    """The bodies at some positions."""
    if not isinstance(bodies, BodyBlock) or bodies.size is None:
        return [bodies[row] for row in at.tolist()]
    cells = np.frombuffer(bodies.data, dtype=np.uint8).reshape(len(bodies), -1)
    return BodyBlock.of_equal(cells[at].tobytes(), len(at), bodies.size)
