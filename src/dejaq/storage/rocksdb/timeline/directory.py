"""Finds the run and row of message ids: by entries, or, generated ids, by the counters of their producer session."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from dejaq.domain.ids import GENERATED_LENGTH, ProducerSession, parse_generated
from dejaq.domain.topic import Topic
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import RocksDatabase
from dejaq.storage.rocksdb.timeline.index import Index
from dejaq.storage.rocksdb.timeline.levels.moved_rows import MovedRows
from dejaq.storage.rocksdb.timeline.run import Run

Found = tuple[Run, int]
# The session, bucket and counter of a generated id.
Parsed = tuple[ProducerSession, int, int]
# So few ids of a run are looked for one by one.
_FEW_IDS = 4
# After the bucket a place has so many bytes; then the entry has the number of its rows.
_PLACE_BYTES = 20


class RunDirectory:
    """Finds the runs of many ids; ids with neighbouring counters share one read."""

    def __init__(self, topic: int, last_item: Callable[[bytes, bytes], tuple[bytes, bytes] | None]) -> None:
        self._topic = topic
        self._last_item = last_item
        self._latest: dict[tuple[int, ProducerSession], tuple[int, int, bytes]] = {}

    def find(self, session: ProducerSession, bucket: int, counter: int) -> tuple[bytes, int] | None:
        """(place of the run, row), or None when no run has it."""
        first, end, place = self._latest.get((bucket, session), (0, 0, b""))
        if not first <= counter < end:
            packed = session.pack()
            entry = self._last_item(
                keys.directory(self._topic, bucket, packed, 0), keys.directory(self._topic, bucket, packed, counter)
            )
            if entry is None:
                return None
            first = int.from_bytes(entry[0][-4:], "big")
            end = first + int.from_bytes(entry[1][_PLACE_BYTES:], "big")
            place = bucket.to_bytes(2, "big") + entry[1][:_PLACE_BYTES]
            self._latest[bucket, session] = first, end, place
        return (place, counter - first) if counter < end else None


class Finder:
    """Finds the rows of ids for one call; ids of one run share one object."""

    def __init__(
        self, topic: Topic, database: RocksDatabase, index: Index, moved: MovedRows, run_at: Callable[[bytes], Run]
    ) -> None:
        self._topic, self._database, self._index, self._moved = topic, database, index, moved
        self._run_at = run_at
        self._runs: dict[bytes, Run] = {}
        self._rows: dict[bytes, dict[str, int]] = {}

    def find(self, ids: Sequence[str]) -> list[Found | None]:
        """The run and row of each id."""
        generated = {
            item: parsed
            for item, message_id in enumerate(ids)
            if len(message_id) == GENERATED_LENGTH
            and (parsed := parse_generated(message_id)) is not None
            and parsed[1] < self._topic.settings.buckets
        }
        found: list[Found | None] = [None] * len(ids)
        self._find_arrivals(ids, found)
        # A generated row that was released or changed is listed in its original bucket.
        places = self._index.find(ids, {item: bucket for item, (_, bucket, _) in generated.items()})
        wanted = Counter(place for place in places if place is not None)
        for item, place in enumerate(places):
            if place is not None:
                found[item] = self._listed_in(place, ids[item], few=wanted[place] < _FEW_IDS)
        self._find_generated(ids, {item: one for item, one in generated.items() if found[item] is None}, found)
        return found

    def _at(self, place: bytes) -> Run:
        run = self._runs.get(place)
        if run is None:
            run = self._runs[place] = self._run_at(place)
        return run

    def _listed_in(self, place: bytes, message_id: str, *, few: bool) -> Found | None:
        """The row of an id that is listed in a run."""
        run = self._at(place)
        if place not in self._rows and not few:
            self._rows[place] = run.rows_by_id()
        rows = self._rows.get(place)
        row = list(run.ids).index(message_id) if rows is None else rows[message_id]
        return (run, row) if run.live >> row & 1 else None

    def _find_arrivals(self, ids: Sequence[str], found: list[Found | None]) -> None:
        """Find the ids that have entries: in the run in which they arrived, or where its rows moved."""
        arrivals = self._index.arrivals(ids)
        numbers = list({number for entries in arrivals.values() for number, _ in entries})
        places = dict(zip(numbers, self._index.places(numbers), strict=True))
        for item, entries in arrivals.items():
            for number, ts in entries:
                place = places[number]
                if place is not None:
                    found[item] = found[item] or self._row_at(place, ids[item], ts)
                found[item] = found[item] or self._moved_row(number, ids[item], ts)

    def _moved_row(self, number: int, message_id: str, ts: int) -> Found | None:
        candidates = (self._row_at(keys.place(key), message_id, ts) for key in self._moved.runs_of(number, ts))
        return next((at for at in candidates if at is not None), None)

    def _row_at(self, place: bytes, message_id: str, ts: int) -> Found | None:
        """The live row of a run that has this id and time; the run may have another id with the same hash there."""
        run = self._at(place)
        times = run.record.ts
        if run.slice >= keys.READY_SLICE and not run.generated:
            if place not in self._rows:
                self._rows[place] = run.rows_by_id()
            named = self._rows[place].get(message_id)
            rows: Iterable[int] = () if named is None else (named,)
        elif run.slice >= keys.READY_SLICE:
            rows = range(run.count)
        else:
            rows = range(bisect_left(times, ts), bisect_right(times, ts))
        for row in rows:
            if run.live >> row & 1 and run.id_at(row) == message_id:
                return run, row
        return None

    def _find_generated(self, ids: Sequence[str], generated: dict[int, Parsed], found: list[Found | None]) -> None:
        """Find generated ids by their counters."""
        if not generated:
            return
        with self._database.seeking() as last_item:
            directory = RunDirectory(self._topic.number, last_item)
            for item, parsed in generated.items():
                at = directory.find(*parsed)
                if at is not None:
                    found[item] = self._counted_row(ids[item], *at)

    def _counted_row(self, message_id: str, place: bytes, row: int) -> Found | None:
        number = keys.number_of_place(place)
        if number not in self._moved:
            run = self._at(place)
            return (run, row) if run.live >> row & 1 else None
        ts = self._moved.time_of(number, row)
        if ts is None:
            return None
        left = self._row_at(place, message_id, ts) if self._moved.exists(number) else None
        return left or self._moved_row(number, message_id, ts)
