"""Journal records, each of which describes a change to many messages, expanded to one row per event.

Nothing here is done row by row: the values that a group of events shares are written as a slice of a column, and
columns are copied as a whole. The memory of the columns is reused for the next batch, because new memory would cost
more than all of this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dejaq.domain.id_column import SEPARATOR
from dejaq.journal.identifiers import Identifiers, strings_of
from dejaq.journal.schema import KINDS, SCHEMA, WRITTEN, WRITTEN_OF_SHARED
from dejaq.protocol.v1 import journal_pb2 as journal

_CREATED, _LEASED = journal.EVENT_CREATED, journal.EVENT_LEASED
Numbers = npt.NDArray[Any]
# Where each column of a group of events goes.
_LISTED = {
    "ts_ms": "ts",
    "priority": "priorities",
    "attempts": "attempts",
    "body_bytes": "body_bytes",
    "body_crc": "body_crcs",
    "handed_us": "handed_us",
}


class Expansion:
    """Gathers records; `take` gives their events as a batch of columns, which holds until the next record is added."""

    def __init__(self, origin: str, *, rows: int, store: str = "") -> None:
        self._origin = origin
        # The identity of a store that several brokers share; without one, records have no tickets.
        self._store = store
        self.schema = WRITTEN_OF_SHARED if store else WRITTEN
        self._capacity = rows
        self._ids = Identifiers(rows)
        self._numbers: dict[str, Numbers] = {
            name: np.empty(rows, dtype=SCHEMA.field(name).type.to_pandas_dtype())
            for name in ("sequence", "row", "at_ms", "lease")
        }
        if store:
            self._numbers["ticket"] = np.empty(rows, dtype=np.int64)
        self._names = {name: _Names(rows) for name in ("kind", "topic", "actor", "principal")}
        self._columns = {name: _Column(rows, SCHEMA.field(name).type) for name in ("expires_ms", *_LISTED)}
        self._steps = np.arange(rows, dtype=np.int32)
        self._zeros = np.zeros(rows, dtype=np.int32)
        self.rows = 0

    def add(self, record: bytes) -> int:
        """Add one serialized record; returns its sequence."""
        parsed = journal.JournalRecord.FromString(record)
        sequence, at_ms, first = parsed.sequence, parsed.at_ms, 0
        begin = self.rows
        for events in parsed.events:
            first += self._add(sequence, at_ms, first, events)
        self._names["principal"].put(slice(begin, self.rows), parsed.principal)
        if self._store:
            self._numbers["ticket"][begin : self.rows] = parsed.ticket or sequence
        return int(sequence)

    def _add(self, sequence: int, at_ms: int, first: int, events: journal.Events) -> int:
        count = self._add_ids(events)
        start, end = self.rows, self.rows + count
        if max(end, first + count) > self._capacity:
            self._grow(max(end, first + count))
        place, numbers, columns = slice(start, end), self._numbers, self._columns
        numbers["sequence"][place] = sequence
        numbers["row"][place] = self._steps[first : first + count]
        numbers["at_ms"][place] = at_ms
        numbers["lease"][place] = events.lease
        self._names["kind"].put(place, KINDS[events.kind])
        self._names["topic"].put(place, events.topic)
        self._names["actor"].put(place, events.actor)
        if events.expires:
            columns["expires_ms"].put(place, (events.expires,))
        for name, field in _LISTED.items():
            values = getattr(events, field)
            if values:
                columns[name].put(place, values)
        if events.kind == _CREATED and not events.priorities:
            columns["priority"].put(place, (0,))
        elif events.kind == _LEASED and not events.attempts:
            columns["attempts"].put(place, (1,))
        self.rows = end
        return count

    def _add_ids(self, events: journal.Events) -> int:
        """Add the ids of a group of events; returns their number."""
        spans = events.spans
        total: int = sum(span.count for span in spans)
        listed: int = sum(span.count for span in spans if not span.prefix)
        text = events.joined or SEPARATOR.join(events.ids)
        found = text.count(SEPARATOR) + 1 if listed or text else 0
        if found != listed:
            raise ValueError(f"{found} ids for spans of {listed}")
        if listed == total:
            self._ids.add_listed(text, listed)
            return total
        ids, taken = text.split(SEPARATOR), 0
        for span in spans:
            if span.prefix:
                self._ids.add_generated(span.prefix, span.first, span.count)
            else:
                self._ids.add_listed(SEPARATOR.join(ids[taken : taken + span.count]), span.count)
                taken += span.count
        return total

    def _grow(self, rows: int) -> None:
        self._capacity = 2 * rows
        self._numbers = {name: _larger(values, 2 * rows) for name, values in self._numbers.items()}
        self._steps = np.arange(2 * rows, dtype=np.int32)
        self._zeros = np.zeros(2 * rows, dtype=np.int32)
        for names in self._names.values():
            names.grow(2 * rows)
        for column in self._columns.values():
            column.grow(2 * rows)

    def take(self) -> pa.RecordBatch:
        """The events gathered so far, in order; after that the gathering starts again."""
        rows, self.rows = self.rows, 0
        arrays: dict[str, pa.Array] = {name: _column_of(values[:rows]) for name, values in self._numbers.items()}
        for name, value in {"origin": self._origin, "store": self._store}.items():
            arrays[name] = pa.DictionaryArray.from_arrays(_column_of(self._zeros[:rows]), strings_of([value]))
        arrays["id"] = self._ids.array()
        self._ids.clear()
        arrays |= {name: names.take(rows) for name, names in self._names.items()}
        columns = self._columns
        columns["handed_us"].forget_zeros(rows)
        arrays |= {name: column.take(rows) for name, column in columns.items()}
        return pa.RecordBatch.from_arrays([arrays[name] for name in self.schema.names], schema=self.schema)


class _Names:
    """A column with few different strings."""

    def __init__(self, rows: int) -> None:
        self._codes: Numbers = np.empty(rows, dtype=np.int32)
        self._known: dict[str, int] = {}

    def put(self, place: slice, name: str) -> None:
        """Set rows to a name."""
        self._codes[place] = self._known.setdefault(name, len(self._known))

    def grow(self, rows: int) -> None:
        """Make room."""
        self._codes = _larger(self._codes, rows)

    def take(self, rows: int) -> pa.DictionaryArray:
        """The column so far; after that it is empty."""
        known, self._known = list(self._known), {}
        return pa.DictionaryArray.from_arrays(_column_of(self._codes[:rows]), strings_of(known))


class _Column:
    """A column of numbers in which values may be missing."""

    def __init__(self, rows: int, kind: pa.DataType) -> None:
        self._kind = kind
        self._numbers: Numbers = np.zeros(rows, dtype=kind.to_pandas_dtype())
        self._given: Numbers = np.zeros(rows, dtype=np.bool_)
        self._used = False

    def put(self, place: slice, values: Sequence[int]) -> None:
        """Set rows to one number, or each to its own; numpy refuses a list of any other length."""
        self._numbers[place] = values[0] if len(values) == 1 else np.array(values)
        self._given[place] = True
        self._used = True

    def forget_zeros(self, rows: int) -> None:
        """Treat 0 as a missing number."""
        if self._used:
            self._given[:rows] &= self._numbers[:rows] != 0

    def grow(self, rows: int) -> None:
        """Make room."""
        self._numbers, self._given = _larger(self._numbers, rows), _larger(self._given, rows)

    def take(self, rows: int) -> pa.Array:
        """The column so far; after that it is empty."""
        if not self._used:
            # Any numbers will do, because all of them are missing.
            return _column_of(self._numbers[:rows], given=np.zeros((rows + 7) // 8, dtype=np.uint8))
        self._used = False
        packed = np.packbits(self._given[:rows], bitorder="little")
        self._given[:rows] = False
        return _column_of(self._numbers[:rows], given=packed)


def _larger(values: Numbers, rows: int) -> Numbers:
    """The same values with room for more; what was not set is 0."""
    larger = np.zeros(rows, dtype=values.dtype)
    larger[: len(values)] = values
    return larger


def _column_of(numbers: Numbers, given: npt.NDArray[np.uint8] | None = None) -> pa.Array:
    """An array over the memory of `numbers`, those whose bit is not in `given` missing."""
    validity = pa.py_buffer(given) if given is not None else None
    return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), len(numbers), [validity, pa.py_buffer(numbers)])
