"""A sealed run of many rows is sealed in groups: a row is opened alone, and a change costs its group only. S5."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from dejaq.domain.bodies.body_block import BodyBlock
from dejaq.domain.bodies.packing import UNREADABLE
from dejaq.domain.headers import encode_headers
from dejaq.domain.id_column import IdColumn
from dejaq.domain.topic import Topic
from dejaq.protocol.v1 import records_pb2 as records
from dejaq.storage.encrypted.body_cipher import TopicKey
from dejaq.storage.encrypted.value_cipher import TopicValueCipher
from dejaq.storage.rocksdb.bodies.row_groups import GroupPart, divided, read_head
from dejaq.storage.rocksdb.bodies.sealed_values import SealedValues
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import RocksDatabase
from dejaq.storage.rocksdb.timeline.far.stored_run import StoredRun
from dejaq.storage.value_ciphers import ValueCipher

NOW = 1_800_000_000_000
KEY, OTHER = keys.run(1, 0, 5, 9, 1), keys.run(1, 0, 5, 10, 1)
ROWS = 300
IDS = [f"id-{row:04}" for row in range(ROWS)]
TIMES = [NOW + 1_000 * row for row in range(ROWS)]
BODIES = [f"secret {row:05}".encode() for row in range(ROWS)]


class OneCipher:
    """The cipher of topic 1."""

    def __init__(self) -> None:
        self._cipher = TopicValueCipher([TopicKey(1, 0, b"k" * 32)])

    async def learn(self, topics: Sequence[Topic]) -> None:
        """Nothing is missing."""

    def of(self, topic: int) -> ValueCipher | None:
        return self._cipher if topic == 1 else None


@pytest.fixture
def database(tmp_path: Path) -> RocksDatabase:
    made = RocksDatabase(tmp_path)
    made.values = SealedValues(OneCipher())
    return made


def sealed(database: RocksDatabase, key: bytes = KEY, **columns: object) -> bytes:
    """The value of a run."""
    record = records.Run(owner="o", ts=TIMES, versions=range(1, ROWS + 1), **columns)  # type: ignore[arg-type]
    return database.values.run(key, record, IdColumn(IDS), BodyBlock(BODIES))


def opened(database: RocksDatabase, value: bytes) -> records.Run:
    """All columns of it."""
    run: records.Run = records.Run.FromString(database.values.opened_run(KEY, value))
    return run


def part_of(value: bytes, group: int) -> GroupPart:
    """Where a group is."""
    groups = read_head(value[1:])
    assert groups is not None
    part = groups.part(group)
    return part._replace(start=part.start + 1)


def with_group(value: bytes, group: int, data: bytes) -> bytes:
    """The value with other bytes in the place of a group."""
    part = part_of(value, group)
    return value[: part.start] + data + value[part.start + part.length :]


def group_of(value: bytes, group: int) -> bytes:
    """The bytes of a group."""
    part = part_of(value, group)
    return value[part.start : part.start + part.length]


@pytest.mark.parametrize("headers", [[], [encode_headers({"a": "secret"})] * ROWS])
def test_rows_are_read_alone_and_together(database: RocksDatabase, headers: list[bytes]) -> None:
    value = sealed(database, headers=headers)
    assert b"secret" not in value
    run = opened(database, value)
    assert (list(run.ids), list(run.ts), list(run.bodies)) == (IDS, TIMES, BODIES)
    assert (run.owner, list(run.versions), list(run.headers)) == ("o", list(range(1, ROWS + 1)), headers)
    stored = StoredRun(database, KEY, value, 0)
    for row in range(0, ROWS, 7):
        assert stored.find(database, TIMES[row], IDS[row]) == (row, (BODIES[row], 0, headers[row] if headers else b""))


@pytest.mark.parametrize(
    ("change", "lost"),
    [
        pytest.param(lambda one, _: with_group(one, 1, group_of(one, 1)[:-1] + b"\0"), {1}, id="a byte"),
        pytest.param(
            lambda one, _: with_group(one, 1, group_of(one, 1).replace(b"id-0130", b"id-9999")), {1}, id="an id"
        ),
        pytest.param(
            lambda one, _: with_group(with_group(one, 0, group_of(one, 1)), 1, group_of(one, 0)), {0, 1}, id="exchanged"
        ),
        pytest.param(lambda one, other: with_group(one, 0, group_of(other, 0)), {0}, id="of another run"),
        pytest.param(lambda one, _: one.replace(b"\n\x01o", b"\n\x01x"), {0, 1, 2}, id="the owner"),
    ],
)
def test_what_was_changed_costs_the_bodies_of_its_groups_only(
    database: RocksDatabase, change: Callable[[bytes, bytes], bytes], lost: set[int]
) -> None:
    headers = [encode_headers({"a": "b"})] * (ROWS - 40) + [b""] * 40
    value = sealed(database, headers=headers)
    changed = change(value, sealed(database, OTHER, headers=headers))
    assert changed != value
    run = opened(database, changed)
    per_group = part_of(value, 0).rows
    assert len(run.bodies) == len(run.headers) == ROWS
    for row in range(ROWS):
        assert run.bodies[row] == (UNREADABLE if row // per_group in lost else BODIES[row])


def test_a_plain_run_in_an_encrypted_topic_is_not_believed(database: RocksDatabase) -> None:
    forged = divided(records.Run(owner="o", ts=TIMES), IdColumn(IDS), BodyBlock([b"forged"] * ROWS))
    found = StoredRun(database, KEY, forged, 0).find(database, TIMES[3], IDS[3])
    assert found is not None
    assert found[1][0] == UNREADABLE


def test_without_its_key_no_body_of_a_run_is_read(database: RocksDatabase) -> None:
    value = sealed(database)
    database.values = SealedValues(None)
    assert set(opened(database, value).bodies) == {UNREADABLE}
    found = StoredRun(database, KEY, value, 0).find(database, TIMES[3], IDS[3])
    assert found is not None
    assert found[1][0] == UNREADABLE
