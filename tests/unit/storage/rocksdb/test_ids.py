"""Entries of ids are found in every state of their merges, after any restart, and leave nothing behind."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dejaq.domain.batch import CreateBatch
from dejaq.domain.changes import Cancel, Create, Edit, Edits
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.id_column import IdColumn
from dejaq.domain.ids import ProducerSession, bucket_of
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.errors import Code, StoreError
from dejaq.storage.base import apply_one
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import RocksDatabase, new_batch
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.storage.rocksdb.timeline import index
from dejaq.storage.rocksdb.timeline.far import finder
from dejaq.storage.rocksdb.timeline.ids import id_entries, pieces, seen_prints, sorted_run
from dejaq.storage.rocksdb.timeline.ids.columns import ENTRY_BYTES, Entries, order_of, pack_pieces, unpack_pieces
from dejaq.storage.rocksdb.timeline.ids.hashing import bucket_column, hash_column, hashes_of, note_distinct, picked
from dejaq.storage.rocksdb.timeline.ids.id_entries import IdEntries
from dejaq.storage.rocksdb.timeline.ids.pieces import RunPieces, WantedPieces, read_pieces
from dejaq.storage.rocksdb.timeline.ids.seen_prints import SeenPrints
from tests.unit.storage.rocksdb.memory_log import MemoryLog

NOW = 1_800_000_000_000
DAY_MS = 86_400_000
TOPIC = Topic(name="t", number=1, settings=TopicSettings(buckets=4))
TABLES = (keys.ID_CHANGES, keys.ID_PIECE, keys.ID_FRAME, keys.ID_RUN, keys.ID_PRINTS)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few dozen entries fill several levels."""
    monkeypatch.setattr(id_entries, "RECENT_ENTRIES", 24)
    monkeypatch.setattr(id_entries, "RECENT_RECORDS", 5)
    monkeypatch.setattr(id_entries, "FAN_IN", 2)
    monkeypatch.setattr(id_entries, "WORK_MIN", 3)
    monkeypatch.setattr(id_entries, "STEP_ENTRIES", 16)
    monkeypatch.setattr(sorted_run, "PRINTS", 40)
    monkeypatch.setattr(seen_prints, "STEP_PRINTS", 16)
    monkeypatch.setattr(seen_prints, "_ROOM_MIN", 1)
    monkeypatch.setattr(sorted_run, "PIECE_ENTRIES", 8)
    # Some groups of pieces are frames, and the others are records of the database.
    monkeypatch.setattr(pieces, "FRAME_BYTES_MIN", 8 * 24)


class Book:
    """Entries in a database of their own, and what must be in them."""

    def __init__(self, path: Path) -> None:
        self.path, self.sequence, self.log = path, 0, MemoryLog()
        self.expected: dict[int, list[tuple[int, int]]] = {}
        self.begin()

    def begin(self) -> None:
        self.database = RocksDatabase(self.path)
        self.database.log = self.log  # type: ignore[assignment]
        self.entries = IdEntries(1, self.database)
        self.entries.load()

    def restart(self) -> None:
        self.database.close()
        self.begin()

    def add(self, hashes: list[int], number: int, ts: int) -> None:
        self.entries.add(np.array(hashes, dtype=np.uint64), number, np.array([ts] * len(hashes)))
        for hashed in hashes:
            self.expected.setdefault(hashed, []).append((number, ts))

    def remove(self, hashed: int, at: int) -> None:
        number, ts = self.expected[hashed].pop(at)
        self.entries.remove([hashed], [number], [ts])
        if not self.expected[hashed]:
            del self.expected[hashed]

    def write(self) -> int:
        """How many records the change wrote."""
        batch = new_batch()
        self.entries.write(batch)
        self.sequence += 1
        self.log.apply(self.database, batch, self.sequence)
        return len(batch)

    def check(self, absent: list[int]) -> None:
        wanted = [*self.expected, *absent]
        found = self.entries.find(np.array(wanted, dtype=np.uint64))
        assert {wanted[row]: sorted(arrivals) for row, arrivals in found.items()} == {
            hashed: sorted(arrivals) for hashed, arrivals in self.expected.items()
        }
        for hashed in wanted[:5]:
            assert sorted(self.entries.find(np.array([hashed], dtype=np.uint64)).get(0, [])) == sorted(
                self.expected.get(hashed, [])
            )

    def records(self) -> dict[bytes, int]:
        return {table: len(list(self.database.scan_keys(table, keys.after(table)))) for table in TABLES}


@pytest.fixture
def book(tmp_path: Path, small: None) -> Iterator[Book]:
    made = Book(tmp_path / "db")
    yield made
    made.database.close()


@pytest.mark.parametrize("seed", range(4))
def test_entries_are_found_whatever_was_merged(book: Book, seed: int) -> None:
    """G5: also ids with the same hash, ids that come back, and after restarts at any time."""
    chance = random.Random(seed)
    for number in range(1, 400):
        hashes = [chance.getrandbits(48) for _ in range(chance.choice([1, 7, 12]))]
        if number % 5 == 0:
            # Ids that collide with others, in one run and over several.
            hashes += [hashes[0], chance.choice([*book.expected, 7])]
        book.add(hashes, number, NOW + number)
        for _ in range(min(chance.choice([0, 4, 9]), len(book.expected) - 1)):
            hashed = chance.choice([*book.expected])
            book.remove(hashed, chance.randrange(len(book.expected[hashed])))
        book.write()
        if number % 17 == 0:
            book.check([chance.getrandbits(48) for _ in range(20)])
        if chance.random() < 0.03:
            book.restart()
            book.check([])
    assert max(run.level for run in book.entries._runs) >= 4


def test_entries_that_were_removed_are_not_written_again(book: Book) -> None:
    """The records follow the number of ids that are listed, not of those that ever were."""
    chance = random.Random(3)
    for number in range(1, 3_000):
        hashes = [chance.getrandbits(48) for _ in range(4)]
        book.add(hashes, number, NOW)
        book.write()
        for hashed in hashes:
            book.remove(hashed, 0)
        book.write()
    assert len(book.entries) < 700
    assert sum(book.records().values()) < 400
    assert not book.entries.find(np.array([chance.getrandbits(48)], dtype=np.uint64))


def test_few_absent_prints_seem_to_be_there_however_many_there_are() -> None:
    """G5: a print that was added is always found, also while the words are made again; each step is short."""
    chance = np.random.default_rng(6)
    runs: list[npt.NDArray[np.uint32]] = []
    seen = SeenPrints()
    rates: list[float] = []
    again = 0
    for number in range(60):
        prints = np.sort(chance.integers(0, 1 << 32, 8_192, dtype=np.uint32))
        runs.append(prints)
        seen.add(prints, runs[:-1])
        for _ in range(8):
            seen.step(1_000)
            again += seen._next is not None
        if number % 10 == 9:
            absent = chance.integers(0, 1 << 32, 20_000, dtype=np.uint32)
            rates.append(len(seen.rows(absent)) / len(absent))
            for run in runs:
                assert len(seen.rows(run)) == len(run)
            assert all(map(seen.may_have, runs[number // 2].tolist()))
            assert [seen.may_have(one) for one in absent[:500].tolist()] == [
                row in set(seen.rows(absent[:500]).tolist()) for row in range(500)
            ]
    assert again
    assert max(rates) < 0.015
    # A filter for all of them that is made at a start has as much room.
    assert seen._filter.room <= 2 * SeenPrints(runs)._filter.room <= 4 * seen._count


def test_no_commit_does_much_of_a_merge(book: Book) -> None:
    """A commit writes in proportion to what it adds, whatever waits to be merged."""
    chance = random.Random(4)
    most = 0
    for number in range(1, 2_000):
        book.add([chance.getrandbits(48) for _ in range(4)], number, NOW)
        most = max(most, book.write())
    assert len(book.entries._runs) > 5
    assert most < 150


def test_a_piece_that_is_not_there_is_damage_and_no_absent_id(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    """G1: a create whose id seems to be absent would make a second message."""
    size = 8 * ENTRY_BYTES
    run = RunPieces(1, 7, size, 1)
    one, none = np.ones(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
    faults: list[StoreError] = []
    monkeypatch.setattr(book.database, "on_fault", faults.append)
    wanted = WantedPieces(none, none, size * one, none, none.astype(np.uint32))
    with pytest.raises(StoreError) as raised:
        read_pieces(book.database, [run], wanted)
    assert raised.value.code is Code.STORE_CORRUPT
    assert faults == [raised.value]


def test_an_empty_topic_has_no_entries(book: Book) -> None:
    """Nothing is left on disk, also of a merge that was not finished."""
    chance = random.Random(5)
    for number in range(1, 200):
        book.add([chance.getrandbits(48) for _ in range(8)], number, NOW)
        book.write()
    batch = new_batch()
    book.entries.clear(batch)
    book.log.apply(book.database, batch, 1_000)
    book.expected.clear()
    book.restart()
    assert book.entries.empty
    book.sequence = 2_000
    for number in range(1_000):
        hashed = chance.getrandbits(48)
        book.add([hashed], number, NOW)
        book.remove(hashed, 0)
        book.write()
    assert sum(book.records().values()) < 60


async def opened(path: Path) -> RocksStorage:
    storage = RocksStorage(path)
    await storage.open(NOW)
    if not await storage.topics():
        await storage.put_topic(TOPIC, DIRECT_CALL)
    return storage


async def create(storage: RocksStorage, ids: list[str], ts: list[int], session: int) -> dict[int, Code]:
    batch = CreateBatch("o", ProducerSession(NOW, session), 0, ts, [b"x"] * len(ids), ids=ids)
    outcomes = await apply_one(storage, Create(TOPIC, batch), NOW, DIRECT_CALL)
    return outcomes.codes


async def test_ids_with_the_same_hash_are_different_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """G5: the message that is found has the id itself, at whatever time it is due."""
    for module in (index, finder):
        monkeypatch.setattr(module, "hash_column", lambda ids: np.full(len(ids), 7, dtype=np.uint64))
    storage = await opened(tmp_path / "s")
    ids = [f"m{number}" for number in range(30)]
    assert not await create(storage, ids[:15], [NOW + DAY_MS] * 15, 1)
    assert not await create(storage, ids[15:], [NOW + DAY_MS + n % 3 for n in range(15)], 2)
    assert set((await create(storage, ids, [NOW + 2 * DAY_MS] * 30, 3)).values()) == {Code.ID_TAKEN}
    assert not (await apply_one(storage, Cancel(TOPIC, "o", ids[5:20]), NOW, DIRECT_CALL)).codes
    moved = Edits(ids=ids[:2], ts=[NOW + 3 * DAY_MS] * 2)
    assert not (await apply_one(storage, Edit(TOPIC, "o", moved), NOW, DIRECT_CALL)).codes
    for _ in range(2):
        found = await storage.get(TOPIC, ids, NOW)
        assert [one.id for one in found if one is not None] == ids[:5] + ids[20:]
        await storage.close()
        storage = await opened(tmp_path / "s")
    await storage.close()


@pytest.mark.parametrize("count", [0, 1, 127, 128, 129, 300, 384])
def test_pieces_have_the_entries_that_were_packed(count: int) -> None:
    numbers = np.arange(3 * count, dtype=np.uint64).reshape(3, count)
    entries = Entries(*numbers)
    packed = [entries.cut(at, at + 128).pack() for at in range(0, count, 128)]
    assert pack_pieces(entries, 128) == b"".join(packed)
    words = np.frombuffer(b"".join(packed), dtype=np.uint64)
    assert np.array_equal(np.array(unpack_pieces(words, 128)), numbers)


@pytest.mark.parametrize("count", [3, 65_536, 65_537])
def test_the_order_of_hashes_keeps_equal_ones(count: int) -> None:
    hashes = np.array(random.Random(count).choices([0, 5, 2**48 - 1, 1 << 40], k=count), dtype=np.uint64)
    assert order_of(hashes).tolist() == np.argsort(hashes, kind="stable").tolist()


def test_ids_are_known_to_differ_by_their_hashes() -> None:
    """G8: what is not known to differ is compared."""
    for ids in (["a", "b"], ["a", "a"], [f"i{row:03}" for row in range(100)], ["i001"] * 100):
        column = IdColumn(ids)
        note_distinct(column)
        assert column.are_distinct is (len(set(ids)) == len(ids))


def test_ids_that_look_alike_have_different_hashes() -> None:
    ids = [f"order-{number}" for number in range(200_000)]
    assert len(set(hashes_of(ids))) == len(ids)
    assert hashes_of(["", "ü", "order-1"]) == hashes_of(iter(["", "ü", "order-1"]))


@pytest.mark.parametrize("lengths", [range(16, 17), range(1, 2), range(64, 65), range(1, 20), range(3)])
def test_a_column_has_the_hashes_of_its_ids(lengths: range) -> None:
    chance = random.Random(lengths.stop)
    for count in (0, 1, 23, 24, 300):
        ids = [
            "".join(chance.choices("abc.:-09Z\u00fc"[: 9 + count % 2], k=chance.choice(lengths))) for _ in range(count)
        ]
        column = IdColumn(ids)
        for _ in range(2):
            assert hash_column(column).tolist() == hash_column(ids).tolist() == hashes_of(ids)
        assert bucket_column(hash_column(column), 7).tolist() == [bucket_of(one, 7) for one in ids]
        rows = [chance.randrange(count) for _ in range(count // 2)]
        chosen = picked(column, np.array(rows, dtype=np.int64))
        assert list(chosen) == [ids[row] for row in rows]
        assert (chosen.wire, chosen.text) == (IdColumn(list(chosen)).wire, "\n".join(chosen))
        assert hash_column(chosen).tolist() == hashes_of(chosen)


async def test_an_id_that_was_deleted_is_free_wherever_its_entry_is(tmp_path: Path, small: None) -> None:
    """G5: in a record of its commit, in a sorted run, and after a restart."""
    storage = await opened(tmp_path / "s")
    ids: list[str] = []
    for number in range(40):
        added = [f"{number}-{row}" for row in range(10)]
        assert not await create(storage, added, [NOW + DAY_MS + number] * 10, 100 + number)
        ids += added
    assert storage._states[1].index._entries._runs
    gone = ids[::2]
    assert not (await apply_one(storage, Cancel(TOPIC, "o", gone), NOW, DIRECT_CALL)).codes
    await storage.close()
    storage = await opened(tmp_path / "s")
    codes: dict[int, Any] = await create(storage, ids, [NOW + 2 * DAY_MS] * len(ids), 9)
    assert sorted(codes) == list(range(1, len(ids), 2))
    await storage.close()
