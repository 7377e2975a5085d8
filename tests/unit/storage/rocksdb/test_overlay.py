"""Pending changes on top of the database: every read sees them as if they were stored."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from dejaq.storage.rocksdb.engine.database import Batch, RocksDatabase, new_batch
from dejaq.storage.rocksdb.engine.overlay import Generation

KEYS = [b"%c%d" % (letter, number) for letter in b"abc" for number in range(12)]


class Stored:
    """A database with pending changes, and a dictionary that has everything at once."""

    def __init__(self, path: Path, seed: int) -> None:
        self.chance = Random(seed)
        self.database = RocksDatabase(path)
        self.expected: dict[bytes, bytes] = {}
        self.waiting: list[tuple[Generation, list[Batch]]] = []
        self.sequence = 0

    def change(self) -> None:
        """Some changes of some batches, in a group that is pending; older groups may be applied."""
        chance = self.chance
        generation, batches = self.database.overlay.begin(), []
        for _ in range(chance.randrange(1, 3)):
            batch = new_batch()
            for _ in range(chance.randrange(1, 6)):
                key = chance.choice(KEYS)
                kind = chance.random()
                if kind < 0.6:
                    batch.put(key, chance.randbytes(3))
                    self.expected[key] = batch.parts[-1]
                elif kind < 0.9:
                    batch.delete(key)
                    self.expected.pop(key, None)
                else:
                    start, end = sorted((key, chance.choice(KEYS)))
                    batch.delete_range(start, end)
                    for one in [one for one in self.expected if start <= one < end]:
                        del self.expected[one]
            generation.add(batch)
            batches.append(batch)
        self.waiting.append((generation, batches))
        while self.waiting and chance.random() < 0.5:
            generation, batches = self.waiting.pop(0)
            for batch in batches:
                self.sequence += 1
                self.database.apply(batch, self.sequence)
            self.database.overlay.drop(generation)

    def check(self) -> None:
        """Every way of reading agrees with the dictionary."""
        database, expected = self.database, self.expected
        chosen = self.chance.sample(KEYS, 6)
        assert [database.get(key) for key in chosen] == [expected.get(key) for key in chosen]
        assert database.get_many(chosen) == [expected.get(key) for key in chosen]
        start, end = sorted(self.chance.sample(KEYS, 2))
        items = sorted((key, value) for key, value in expected.items() if start <= key < end)
        assert list(database.scan(start, end)) == items
        assert list(database.scan_keys(start, end)) == [key for key, _ in items]
        assert database.first_key(start, end) == (items[0][0] if items else None)
        upto = [item for item in sorted(expected.items()) if start <= item[0] <= end]
        assert database.last_item(start, end) == (upto[-1] if upto else None)


@pytest.mark.parametrize("seed", range(20))
def test_every_read_sees_pending_changes(seed: int, tmp_path: Path) -> None:
    stored = Stored(tmp_path / "db", seed)
    for _ in range(40):
        stored.change()
        stored.check()
    view, then = stored.database.view(), sorted(stored.expected.items())
    for _ in range(20):
        stored.change()
    assert list(view.items(b"a", b"d")) == then
    assert [view.get(key) for key, _ in then] == [value for _, value in then]
    view.close()
    stored.database.close()


def test_the_database_says_which_record_it_has_last(tmp_path: Path) -> None:
    database = RocksDatabase(tmp_path / "db")
    assert database.applied is None
    database.begin_log(new_batch(), 41)
    assert database.applied == 41
    batch = new_batch()
    batch.put(b"key", b"value")
    database.replay((number, batch) for number in (42, 43))
    assert database.applied == 43
    database.close()
