"""The database wrapper avoids four silent defects of rocksdict; each test shows one defect and the way around it."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from rocksdict import DbClosedError, Options, Rdict, ReadOptions

from dejaq.errors import Code, DejaqError, StoreError
from dejaq.storage.rocksdb.engine.database import RocksDatabase, new_batch, open_error


@pytest.fixture
def database(tmp_path: Path) -> Iterator[RocksDatabase]:
    database = RocksDatabase(tmp_path / "db")
    batch = new_batch()
    for number in range(100):
        batch.put(b"k%03d" % number, b"v%03d" % number)
    database.apply(batch, 1)
    yield database
    # A test may have closed it.
    with suppress(DbClosedError):
        database.close()


def test_a_scan_starts_at_its_lower_bound(database: RocksDatabase, tmp_path: Path) -> None:
    assert [key for key, _ in database.scan(b"k010", b"k013")] == [b"k010", b"k011", b"k012"]

    raw = Rdict(str(tmp_path / "raw"), options=Options(raw_mode=True))
    for number in range(100):
        raw[b"k%03d" % number] = b""
    options = ReadOptions()
    options.set_iterate_lower_bound(b"k010")
    seen = list(raw.keys(read_opt=options, from_key=b"k000"))
    raw.close()
    assert b"k000" in seen, "rocksdict fixed the lower bound: the wrapper may use it"


def test_a_scan_keeps_its_upper_bound_whatever_is_collected(database: RocksDatabase) -> None:
    scan = database.scan(b"k000", b"k050")
    first = next(scan)
    gc.collect()
    assert first == (b"k000", b"v000")
    assert [key for key, _ in scan] == [b"k%03d" % number for number in range(1, 50)]


def test_a_scan_sees_the_state_at_its_first_step(database: RocksDatabase) -> None:
    scan = database.scan(b"k000", b"l")
    next(scan)
    batch = new_batch()
    batch.put(b"k0505", b"new")
    batch.delete(b"k060")
    database.apply(batch, 1)
    keys = [key for key, _ in scan]
    assert b"k0505" not in keys
    assert b"k060" in keys


def test_close_releases_the_lock_after_an_unfinished_scan(database: RocksDatabase, tmp_path: Path) -> None:
    scan = database.scan(b"k000", b"l")
    next(scan)
    del scan
    database.close()
    again = RocksDatabase(tmp_path / "db")
    assert again.get(b"k001") == b"v001"
    again.close()


def test_close_after_flushes_in_a_thread(database: RocksDatabase, tmp_path: Path) -> None:
    def flush_often() -> None:
        for _ in range(50):
            database.flush()

    thread = threading.Thread(target=flush_often)
    thread.start()
    thread.join()
    database.close()
    RocksDatabase(tmp_path / "db").close()


def test_a_second_process_is_refused_with_the_reason(database: RocksDatabase, tmp_path: Path) -> None:
    with pytest.raises(StoreError) as refused:
        RocksDatabase(tmp_path / "db")
    assert refused.value.code is Code.STORE_LOCKED
    assert "--data" in refused.value.message


def test_a_damaged_block_is_not_reported_as_a_lock(tmp_path: Path) -> None:
    error = open_error(tmp_path, Exception("Corruption: block checksum mismatch: stored = 1, computed = 2"))
    assert error.code is Code.STORE_CORRUPT


def test_last_item_is_the_greatest_key_up_to_the_end(database: RocksDatabase) -> None:
    assert database.last_item(b"k000", b"k0105") == (b"k010", b"v010")
    assert database.last_item(b"k050", b"k04") is None
    assert database.first_key(b"k0105", b"l") == b"k011"
    assert database.first_key(b"k099x", b"l") is None


def test_get_many_keeps_the_order_and_the_gaps(database: RocksDatabase) -> None:
    assert database.get_many([b"k005", b"none", b"k001"]) == [b"v005", None, b"v001"]
    assert database.get_many([]) == []


def test_sorted_keys_are_read_as_they_were_when_the_view_was_made(database: RocksDatabase) -> None:
    wanted = [*(b"k%03d" % number for number in (0, 1, 3, 4, 5, 40, 41, 60, 98)), b"k0981", b"k0985", b"k099", b"l"]
    pending = database.overlay.begin()
    first = new_batch()
    first.put(b"k0981", b"pending")
    first.put(b"k004", b"changed")
    first.delete(b"k005")
    pending.add(first)
    view = database.view()
    later = new_batch()
    later.delete(b"k000")
    later.put(b"k041", b"later")
    later.put(b"k0985", b"later")
    pending.add(later)
    database.apply(later, 2)
    expected = {b"k%03d" % number: b"v%03d" % number for number in range(100)}
    expected |= {b"k0981": b"pending", b"k004": b"changed"}
    del expected[b"k005"]
    for keys in (wanted, wanted[:1], wanted[-1:], wanted[4:7], []):
        assert view.get_sorted(keys) == [expected.get(key) for key in keys]
        assert view.get_sorted(keys) == [view.get(key) for key in keys]
    view.close()
    with pytest.raises(DejaqError, match="closed"):
        view.get_sorted(wanted)
