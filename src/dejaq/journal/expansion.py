"""Journal records, which name what happened to many messages at once, expanded to one row an event.

Nothing here is done row by row: what a group of events shares is noted once and repeated by numpy, and columns
are copied as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dejaq.journal.identifiers import Identifiers, counting
from dejaq.journal.schema import KINDS, SCHEMA
from dejaq.protocol.v1 import journal_pb2 as journal

_CREATED, _LEASED = journal.EVENT_CREATED, journal.EVENT_LEASED
Ints = npt.NDArray[np.int64]


class Expansion:
    """Gathers records; `take` gives their events as a batch of columns."""

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._clear()

    def _clear(self) -> None:
        self.rows = 0
        self._ids = Identifiers()
        self._counts: list[int] = []
        self._firsts: list[int] = []
        self._shared: dict[str, list[int]] = {name: [] for name in ("sequence", "at_ms", "lease", "expires_ms")}
        self._names: dict[str, _Names] = {name: _Names() for name in ("kind", "topic", "actor")}
        self._columns: dict[str, _Column] = {
            name: _Column() for name in ("ts_ms", "priority", "attempts", "body_bytes", "body_crc", "handed_us")
        }

    def add(self, record: bytes) -> int:
        """Take in one serialized record; its sequence."""
        parsed = journal.JournalRecord.FromString(record)
        first = 0
        for events in parsed.events:
            first += self._add(parsed.sequence, parsed.at_ms, first, events)
        return int(parsed.sequence)

    def _add(self, sequence: int, at_ms: int, first: int, events: journal.Events) -> int:
        count = self._add_ids(events)
        kind = events.kind
        self._counts.append(count)
        self._firsts.append(first)
        shared = self._shared
        shared["sequence"].append(sequence)
        shared["at_ms"].append(at_ms)
        shared["lease"].append(events.lease)
        shared["expires_ms"].append(events.expires)
        names = self._names
        names["kind"].add(KINDS[kind])
        names["topic"].add(events.topic)
        names["actor"].add(events.actor)
        columns, place = self._columns, (self.rows, count)
        columns["ts_ms"].add(events.ts, place)
        columns["priority"].add(events.priorities, place, default=0 if kind == _CREATED else None)
        columns["attempts"].add(events.attempts, place, default=1 if kind == _LEASED else None)
        columns["body_bytes"].add(events.body_bytes, place)
        columns["body_crc"].add(events.body_crcs, place)
        columns["handed_us"].add(events.handed_us, place)
        self.rows += count
        return count

    def _add_ids(self, events: journal.Events) -> int:
        total = listed = 0
        for span in events.spans:
            if span.prefix:
                self._ids.add_generated(span.prefix, span.first, span.count)
            else:
                self._ids.add_listed(events.ids[listed : listed + span.count])
                listed += span.count
            total += span.count
        if listed != len(events.ids):
            raise ValueError(f"{len(events.ids)} ids for spans of {listed}")
        return total

    def take(self) -> pa.RecordBatch:
        """The events gathered so far, in order; gathering begins anew."""
        counts = np.array(self._counts, dtype=np.int64)
        shared = {name: np.array(values, dtype=np.int64) for name, values in self._shared.items()}
        ended = np.repeat(shared["expires_ms"] == 0, counts)
        arrays: dict[str, pa.Array] = {
            "origin": _spelled(np.zeros(self.rows, dtype=np.int32), [self._origin]),
            "row": pa.array(counting(counts, np.array(self._firsts, dtype=np.int64)).astype(np.int32)),
            "id": self._ids.array(),
            "expires_ms": pa.array(np.repeat(shared.pop("expires_ms"), counts), mask=ended),
        }
        for name, values in shared.items():
            arrays[name] = pa.array(np.repeat(values, counts))
        for name, spelling in self._names.items():
            arrays[name] = spelling.array(counts)
        for name, column in self._columns.items():
            arrays[name] = column.array(counts, SCHEMA.field(name).type, zero_is_null=name == "handed_us")
        self._clear()
        return pa.record_batch([arrays[name] for name in SCHEMA.names], names=SCHEMA.names)


class _Names:
    """A column of few different strings, one for each group of events."""

    def __init__(self) -> None:
        self._codes: list[int] = []
        self._known: dict[str, int] = {}

    def add(self, name: str) -> None:
        self._codes.append(self._known.setdefault(name, len(self._known)))

    def array(self, counts: Ints) -> pa.DictionaryArray:
        return _spelled(np.repeat(np.array(self._codes, dtype=np.int32), counts), list(self._known))


class _Column:
    """A column of numbers of which a group of events has none, one for all, or one each."""

    def __init__(self) -> None:
        self._scalars: list[int] = []
        self._missing: list[bool] = []
        self._listed: list[tuple[int, int, npt.NDArray[Any]]] = []

    def add(self, values: Sequence[int], place: tuple[int, int], *, default: int | None = None) -> None:
        given = len(values)
        if given > 1:
            self._listed.append((*place, np.array(values)))
        scalar = values[0] if given == 1 else default
        self._scalars.append(scalar or 0)
        self._missing.append(given == 0 and default is None)

    def array(self, counts: Ints, kind: pa.DataType, *, zero_is_null: bool) -> pa.Array:
        if all(self._missing):
            return pa.nulls(int(counts.sum()), kind)
        numbers = np.repeat(np.array(self._scalars, dtype=kind.to_pandas_dtype()), counts)
        for start, count, values in self._listed:
            # A column that is neither one nor one a message does not fit, and numpy says so.
            numbers[start : start + count] = values
        missing = np.repeat(np.array(self._missing), counts)
        if zero_is_null:
            missing |= numbers == 0
        return pa.array(numbers, mask=missing)


def _spelled(codes: npt.NDArray[np.int32], names: list[str]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(names, pa.string()))
