"""The embedded store seals what it writes of encrypted topics: a run at once. S5."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from rocksdict import Options, Rdict, WriteOptions

from dejaq.domain.bodies.packing import UNREADABLE
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.headers import encode_headers
from dejaq.domain.topic import Encryption, Topic, TopicStage
from dejaq.protocol.v1 import records_pb2 as records
from dejaq.storage.encrypted.body_cipher import TopicKey
from dejaq.storage.encrypted.providers.listed import ListedKeys, new_key_line
from dejaq.storage.encrypted.store import EncryptedStorage
from dejaq.storage.encrypted.value_cipher import TopicValueCipher
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.testing.conformance.scene import Scene
from dejaq.testing.model.replay import events_of, read_journal

LINE = new_key_line("k1")
BODY = b"a secret of many words " * 10
KEY = TopicKey(7, 0, b"k" * 32)


def encrypted(path: Path) -> EncryptedStorage:
    """An embedded store with keys, which reads every run from disk."""
    inner = RocksStorage(path, journal=True, window_bytes=1, young_ids=3)
    return EncryptedStorage(inner, ListedKeys(lambda: LINE, source="the test"))


async def begin(path: Path) -> tuple[Scene, Topic]:
    """A scene with an encrypted topic."""
    scene = await Scene.begin(lambda: encrypted(path))
    return scene, await scene.new_topic("secret", encryption=Encryption.BODIES)


def edit_runs(path: Path, change: Callable[[dict[bytes, bytes]], dict[bytes, bytes]]) -> None:
    """Change the runs of a closed store, of which each is small enough to be in the database itself."""
    database = Rdict(str(path / "db"), options=Options(raw_mode=True))
    stored = cast("Iterable[tuple[bytes, bytes]]", database.items())
    found = {key: value for key, value in stored if key.startswith(keys.RUN)}
    for key, value in change(found).items():
        database.put(key, value, WriteOptions())
    database.flush()
    database.close()


async def reopened(scene: Scene) -> None:
    """Open the store again, from what is on disk."""
    await scene.storage.open(scene.now)


def forged(value: bytes) -> bytes:
    """A run with another body, in the plain form."""
    size = int.from_bytes(value[1:5], "big")
    record = records.Run.FromString(value[5 : 5 + size])
    record.bodies.extend([b"forged"] * len(record.ts))
    return bytes(record.SerializeToString())


def exchanged(runs: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Each run under the key of another one."""
    listed = list(runs)
    return {key: runs[other] for key, other in zip(listed, listed[1:] + listed[:1], strict=True)}


def with_the_secret_of_another(runs: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Each run with its own ids and times, and the sealed bodies of another one."""

    def divided(value: bytes) -> tuple[bytes, bytes]:
        end = 5 + int.from_bytes(value[1:5], "big")
        return value[:end], value[end:]

    listed = list(runs)
    others = dict(zip(listed, listed[1:] + listed[:1], strict=True))
    return {key: divided(value)[0] + divided(runs[others[key]])[1] for key, value in runs.items()}


async def test_no_body_is_in_the_store_and_all_are_read_again(tmp_path: Path) -> None:
    scene, topic = await begin(tmp_path)
    headers = encode_headers({"kind": "a secret header"})
    await scene.put("a", body=BODY, topic=topic)
    batch = replace(scene.batch(["b", "c"], delays=[5, 6], bodies=[BODY, BODY * 9]), headers=[headers, b""])
    await scene.create(batch, topic)
    await scene.storage.close()
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or (BODY not in (data := path.read_bytes()) and b"a secret header" not in data)
    await reopened(scene)
    assert [(await scene.get(one, topic)).body for one in "abc"] == [BODY, BODY, BODY * 9]
    assert (await scene.get("b", topic)).headers == {"kind": "a secret header"}
    await scene.end()


@pytest.mark.parametrize(
    ("change", "delivered"),
    [
        pytest.param(exchanged, {}, id="exchanged"),
        pytest.param(with_the_secret_of_another, {}, id="sealed bodies exchanged"),
        pytest.param(lambda runs: {key: forged(value) for key, value in runs.items()}, {}, id="plain"),
        pytest.param(lambda runs: {key: value[:-1] for key, value in runs.items()}, {}, id="cut"),
        pytest.param(
            lambda runs: {key: value.replace(b"first", b"other") for key, value in runs.items()},
            {"again": b"again"},
            id="another id",
        ),
    ],
)
async def test_a_run_that_was_changed_or_exchanged_in_the_store_delivers_no_body(
    tmp_path: Path, change: Callable[[dict[bytes, bytes]], dict[bytes, bytes]], delivered: dict[str, bytes]
) -> None:
    scene, topic = await begin(tmp_path)
    for message_id in ("first", "again"):
        await scene.put(message_id, body=message_id.encode(), topic=topic)
    await scene.storage.close()
    edit_runs(tmp_path, change)
    await reopened(scene)
    lease = await scene.try_lease(topic=topic)
    assert lease is not None
    bodies = dict(zip(lease.ids(), lease.bodies, strict=True))
    assert len(bodies) == 2
    assert {name: body for name, body in bodies.items() if body != UNREADABLE} == delivered
    await scene.end()


async def test_a_store_without_keys_is_opened_and_nothing_that_it_cannot_read_is_merged(tmp_path: Path) -> None:
    scene, topic = await begin(tmp_path)
    await scene.put("a", body=BODY, topic=topic)
    await scene.storage.close()
    plain = RocksStorage(tmp_path)
    await plain.open(scene.now)
    (found,) = [one for one in await plain.topics() if one.name == topic.name]
    (message,) = await plain.get(found, ["a"], scene.now)
    assert message is not None
    assert message.body == UNREADABLE
    assert plain._database.values.is_locked(found)
    await plain.close()
    await reopened(scene)
    assert (await scene.get("a", topic)).body == BODY
    await scene.end()


async def test_another_key_seals_from_now_on_and_all_of_them_open(tmp_path: Path) -> None:
    scene, topic = await begin(tmp_path)
    storage = scene.storage
    assert isinstance(storage, EncryptedStorage)
    await scene.put("a", body=BODY, topic=topic)
    await asyncio.gather(*(storage.rekey(topic, DIRECT_CALL, new_key=True) for _ in range(2)))
    await scene.put("b", body=BODY, topic=topic)
    for _ in range(2):
        assert [(await scene.get(one, topic)).body for one in "ab"] == [BODY, BODY]
        await storage.close()
        await reopened(scene)
    await scene.end()


async def test_what_is_left_of_a_deleted_topic_cannot_be_read_with_its_record(tmp_path: Path) -> None:
    """Crypto-shredding: a run in an old copy of the store is of no use without the topic's keys."""
    scene, topic = await begin(tmp_path)
    await scene.put("a", body=BODY, topic=topic)
    await scene.storage.close()
    kept: dict[bytes, bytes] = {}

    def keep(runs: dict[bytes, bytes]) -> dict[bytes, bytes]:
        kept.update(runs)
        return {}

    edit_runs(tmp_path, keep)
    await reopened(scene)
    await scene.storage.drop_topic(topic, scene.now, scene.context)
    again = await scene.new_topic("secret", encryption=Encryption.BODIES)
    await scene.put("a", body=b"another", topic=again)
    (old,) = kept.values()
    await scene.storage.close()
    edit_runs(tmp_path, lambda runs: dict.fromkeys(runs, old))
    await reopened(scene)
    assert (await scene.get("a", again)).body == UNREADABLE
    await scene.end()


async def test_what_is_written_of_a_topic_whose_keys_are_gone_is_never_plain(tmp_path: Path) -> None:
    """Creates that waited while the topic was deleted, and merges that were in progress, may still write runs."""
    scene, topic = await begin(tmp_path)
    storage = scene.storage
    assert isinstance(storage, EncryptedStorage)
    assert isinstance(storage.inner, RocksStorage)
    values = storage.inner._database.values
    key, record = keys.run(topic.number, 0, 0, 1, 0), records.Run(ts=[1], bodies=[BODY])
    before = values.run(key, record, None, None)
    await storage._keyring.remove(topic.in_state(TopicStage.DELETING), DIRECT_CALL)
    after = values.run(key, record, None, None)
    assert BODY[:8] not in before + after
    assert BODY[:8] not in values.opened_run(key, before)
    await scene.storage.drop_topic(topic, scene.now, scene.context)
    assert storage._keyring.of(topic.number) is None
    await scene.end()


async def test_equal_bodies_have_different_check_values_in_the_journal(tmp_path: Path) -> None:
    scene, topic = await begin(tmp_path)
    await scene.create(scene.batch(["a", "b"], delays=[5, 6], bodies=[BODY, BODY]), topic)
    await scene.put("c", body=BODY, topic=topic)
    events = [event for record in await read_journal(scene.storage) for event in events_of(record)]
    created = [event for event in events if event.kind == "created"]
    assert [event.body_bytes for event in created] == [len(BODY)] * 3
    assert len({event.body_crc for event in created}) == 3
    await scene.end()


def test_a_value_is_opened_under_its_name_and_with_its_key_only() -> None:
    cipher = TopicValueCipher([KEY])
    first, second = cipher.seal(b"name", BODY), cipher.seal(b"name", BODY)
    assert first != second
    assert BODY[:8] not in first + second
    assert cipher.seal(b"name", b"", b"before").startswith(b"before")
    assert TopicValueCipher([KEY]).open(b"name", first) == BODY
    other = TopicValueCipher([replace(KEY, secret=b"j" * 32)])
    bad = [cipher.open(b"other", first), other.open(b"name", first), cipher.open(b"name", first[:-1])]
    assert [*bad, cipher.open(b"name", b""), cipher.open(b"name", b"plain " * 9)] == [None] * 5


def test_check_values_depend_on_the_key_the_record_and_the_row() -> None:
    cipher = TopicValueCipher([KEY, replace(KEY, number=1, secret=b"j" * 32)])
    column = cipher.checks(5, 0, iter([1, 1, 2]))
    assert len(column) == 12
    assert column == TopicValueCipher([KEY]).checks(5, 0, [1, 1, 2])
    assert column[4:8] == cipher.checks(5, 1, [1])
    assert len({column[:4], column[4:8], cipher.checks(6, 0, [1]), cipher.checks(5 + 2**32, 0, [1])}) == 4
    assert cipher.checks(5, 0, [1]) != TopicValueCipher([replace(KEY, secret=b"j" * 32)]).checks(5, 0, [1])


def test_large_values_leave_no_large_buffer() -> None:
    cipher = TopicValueCipher([KEY])
    large = bytes(5 * 1024 * 1024)
    assert cipher.open(b"name", cipher.seal(b"name", large)) == large
    assert len(cipher._buffer) == 0
