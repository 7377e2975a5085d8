"""R11: damage to the store's files is found and reported, never ignored. R12: a disk that fails."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dejaq.domain.batch import CreateBatch, admit
from dejaq.domain.changes import Create
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.errors import Code, DejaqError, StoreError
from dejaq.storage.base import Filter, apply_one
from dejaq.storage.rocksdb.engine import committer, keys
from dejaq.storage.rocksdb.engine.database import RocksDatabase
from dejaq.storage.rocksdb.store import RocksStorage
from tests.integration.storage.killing import killed

NOW = 1_800_000_000_000
MESSAGES = 2_000
TRIALS = int(os.environ.get("DEJAQ_DAMAGE_TRIALS", "60"))


async def _fill(storage: RocksStorage) -> Topic:
    await storage.open(NOW)
    topic = Topic("mail", await storage.next_topic_number(), TopicSettings(buckets=4), created_ms=NOW)
    await storage.put_topic(topic, DIRECT_CALL)
    session = ProducerSession(NOW, 7)
    noise = random.Random(5)
    for number in range(MESSAGES // 50):
        batch = CreateBatch(
            owner="billing",
            session=session,
            sequence=number * 50,
            bucket=number % 4,
            ts=[NOW + row * 1_000 for row in range(50)],
            bodies=[noise.randbytes(100) for _ in range(50)],
        )
        admit(batch, topic.settings, NOW)
        assert not (await apply_one(storage, Create(topic, batch), NOW, DIRECT_CALL)).codes
        if number == MESSAGES // 100:
            storage._database.flush()
    return topic


async def _read_all(path: Path) -> int:
    """Every message that can be read; raises when the store reports that it is damaged."""
    storage = RocksStorage(path)
    await storage.open(NOW)
    try:
        found, cursor = 0, None
        topics = await storage.topics()
        while topics:
            page = await storage.browse(topics[0], Filter(), cursor, 500, NOW)
            found += len(page.messages)
            cursor = page.cursor
            if cursor is None:
                break
        return found
    finally:
        await storage.close()


@pytest.fixture
async def crashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Path]:
    """A data directory as after a kill: half of the messages in a table, half in the log."""
    monkeypatch.setattr(committer, "_WATERMARK_S", 0.0)
    storage = RocksStorage(tmp_path / "live")
    await _fill(storage)
    await killed(tmp_path / "live", tmp_path / "crashed")
    yield tmp_path / "crashed"
    await storage.close()


def _damage(path: Path, chance: random.Random) -> str:
    files = [file for file in (path / "db").iterdir() if file.suffix in {".sst", ".log"} and file.stat().st_size]
    files += [file for file in (path / "db").iterdir() if file.name.startswith(("MANIFEST", "CURRENT"))]
    files += (path / "commit").iterdir()
    files.append(path / "watermark")
    file = chance.choice(sorted(files))
    data = bytearray(file.read_bytes())
    position = chance.randrange(len(data))
    if chance.random() < 0.5:
        data[position] ^= 1 << chance.randrange(8)
        file.write_bytes(data)
        return f"bit flip at {position} of {file.name}"
    file.write_bytes(data[:position])
    return f"{file.name} cut from {len(data)} to {position}"


async def test_r11_no_damage_is_silent(crashed: Path, tmp_path: Path) -> None:
    """G1: whatever one fault does to a file, either all messages are read or the store refuses to open."""
    shutil.copytree(crashed, tmp_path / "whole")
    assert await _read_all(tmp_path / "whole") == MESSAGES
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    refused = 0
    for trial in range(TRIALS):
        path = tmp_path / f"damaged-{trial}"
        shutil.copytree(crashed, path)
        what = _damage(path, random.Random(seed + trial))
        try:
            found = await _read_all(path)
        except DejaqError as error:
            assert error.code in {Code.STORE_CORRUPT, Code.STORE_FAILED}, f"{what}: {error}"
            refused += 1
        else:
            assert found == MESSAGES, f"{what}: {MESSAGES - found} messages are missing without an error (seed {seed})"
    assert refused > TRIALS // 2


async def test_r11_a_manifest_with_an_unreadable_record_is_refused(crashed: Path) -> None:
    """G1: RocksDB treats an unreadable record as the end of the manifest, and opens with the records before it."""
    (manifest,) = (crashed / "db").glob("MANIFEST-*")
    whole = manifest.read_bytes()
    # RocksDB opens with the first of these; with some of the others its call never returns.
    for position in (121, *range(0, len(whole), 3)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        manifest.write_bytes(damaged)
        with pytest.raises(StoreError) as refused:
            await _read_all(crashed)
        assert refused.value.code is Code.STORE_CORRUPT
        assert "the manifest" in refused.value.message


async def test_r11_a_lost_watermark_or_database_is_refused(crashed: Path) -> None:
    (crashed / "watermark").rename(crashed / "elsewhere")
    with pytest.raises(StoreError, match="lost its watermark"):
        await _read_all(crashed)
    (crashed / "elsewhere").rename(crashed / "watermark")
    shutil.rmtree(crashed / "db")
    with pytest.raises(StoreError, match="lost its database"):
        await _read_all(crashed)


async def test_r11_a_damaged_store_whose_database_cannot_be_closed_is_refused_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocksDB repeats the report of a damaged block when it is closed, as an error that has no code."""
    storage = RocksStorage(tmp_path)
    topic = await _fill(storage)
    storage._database._db[keys.of_topic(keys.TOPIC, topic.number)] = b"\xff"
    await storage.close()
    close = RocksDatabase.close

    def close_and_report(database: RocksDatabase) -> None:
        close(database)
        raise Exception("Corruption: block checksum mismatch")

    monkeypatch.setattr(RocksDatabase, "close", close_and_report)
    with pytest.raises(StoreError) as refused:
        await RocksStorage(tmp_path).open(NOW)
    assert refused.value.code is Code.STORE_CORRUPT


async def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    storage = RocksStorage(tmp_path)
    await storage.open(NOW)
    storage._database._db[b"mformat"] = b"99"
    await storage.close()
    with pytest.raises(StoreError) as refused:
        await RocksStorage(tmp_path).open(NOW)
    assert refused.value.code is Code.STORE_NEWER


async def test_a_directory_that_cannot_be_created_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError) as refused:
        await RocksStorage(tmp_path / "file" / "data").open(NOW)
    assert refused.value.code is Code.STORE_FAILED
