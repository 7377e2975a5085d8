"""The value of a run in groups of rows: it is the run, and each row can be read and verified without the others."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from dejaq.domain.bodies.body_block import BodyBlock
from dejaq.domain.id_column import IdColumn
from dejaq.errors import Code, StoreError
from dejaq.protocol.v1 import records_pb2 as records
from dejaq.storage.rocksdb.bodies.row_groups import (
    GROUP_ROWS_MAX,
    RowGroups,
    divided,
    head_bytes,
    is_divided,
    joined,
    read_head,
)
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import RocksDatabase
from dejaq.storage.rocksdb.timeline.far.packed_run import PackedRun, times_in
from dejaq.storage.rocksdb.timeline.far.stored_run import StoredRun

NOW = 1_800_000_000_000
KEY = keys.run(1, 0, 5, 9, 1)
ROWS = 2 * GROUP_ROWS_MAX + 7


@pytest.fixture
def database(tmp_path: Path) -> RocksDatabase:
    return RocksDatabase(tmp_path)


def _times(count: int) -> list[int]:
    """Ascending times, of which several rows at the borders of groups have the same."""
    chance = random.Random(1)
    times = sorted(NOW + 1_000 * chance.randrange(count // 3) for _ in range(count))
    border = times[GROUP_ROWS_MAX]
    return [border if abs(row - GROUP_ROWS_MAX) <= 2 else at for row, at in enumerate(times)]


def _value(count: int, lengths: list[int], sizes: list[int], **columns: object) -> tuple[records.Run, list[str], bytes]:
    ids = [f"{row:x}".rjust(lengths[row % len(lengths)], "-") for row in range(count)]
    bodies = [bytes([row % 251]) * sizes[row % len(sizes)] for row in range(count)]
    record = records.Run(owner="o", ts=sorted(_times(count)), versions=range(1, count + 1), **columns)  # type: ignore[arg-type]
    value = divided(record, IdColumn(ids), BodyBlock(bodies))
    record.ids.extend(ids)
    record.bodies.extend(bodies)
    return record, ids, value


@pytest.mark.parametrize("sizes", [[0], [5], [127], [128], [300], [20_000], [0, 1], [127, 128], [7, 7, 8, 6]])
@pytest.mark.parametrize("lengths", [[3], [16], [64], [3, 64], [34, 33]])
def test_a_row_is_found_in_its_group(database: RocksDatabase, sizes: list[int], lengths: list[int]) -> None:
    columns: list[dict[str, object]] = [{}]
    if sizes == [5] or lengths == [3]:
        columns += [{"priorities": range(ROWS)}, {"headers": [b"\n\x06\n\x01k\x12\x01v", *[b""] * (ROWS - 1)]}]
    for some in columns:
        record, ids, value = _value(ROWS, lengths, sizes, **some)
        run = StoredRun(database, KEY, value, 1 << 2)
        assert run.count == ROWS
        assert not run.is_rare
        for row, message_id in enumerate(ids):
            found = run.find(database, record.ts[row], message_id)
            if row == 2:
                assert found is None
                continue
            priority = record.priorities[row] if record.priorities else 0
            assert found == (row, (record.bodies[row], priority, record.headers[row] if record.headers else b""))
            assert run.find(database, record.ts[row] + 1, message_id) is None
        assert run.find(database, record.ts[0], "zz") is None
        assert run.find(database, record.ts[0] - 1, ids[0]) is None
        assert run.find(database, record.ts[-1] + 1, ids[-1]) is None


@pytest.mark.parametrize("columns", [{}, {"priorities": range(ROWS)}, {"headers": [b"\n\x06\n\x01k\x12\x01v"] * ROWS}])
def test_the_value_as_a_whole_is_the_encoded_run(columns: dict[str, object]) -> None:
    record, _, value = _value(ROWS, [5, 6], [0, 130], **columns)
    read = records.Run.FromString(value)
    read.ClearField("groups")
    assert read == record


@pytest.mark.parametrize("sizes", [[0], [127], [130], [7, 7, 8, 6]])
@pytest.mark.parametrize("lengths", [[16], [64], [34, 33]])
def test_a_merge_copies_columns_if_all_their_values_have_one_length(sizes: list[int], lengths: list[int]) -> None:
    for columns in ({}, {"priorities": range(ROWS)}):
        record, ids, value = _value(ROWS, lengths, sizes, **columns)
        assert records.Run.FromString(joined(value)) == record
        for stored in (joined(value), value[head_bytes(value) :]):
            packed = PackedRun(stored)
            assert packed.times.tolist() == list(record.ts)
            assert (packed.cells is not None) == (
                stored != value[head_bytes(value) :] and len(sizes) == len(lengths) == 1 and not columns
            )
        if cells := PackedRun(joined(value)).cells:
            assert [bytes(row)[2:].decode() for row in cells[0].matrix] == ids
            width = len(cells[1].head)
            assert [bytes(row)[width:] for row in cells[1].matrix] == list(record.bodies)


@pytest.mark.parametrize("sizes", [[0], [130], [7, 7, 8, 6]])
def test_without_groups_a_run_is_as_one_that_never_had_them(sizes: list[int]) -> None:
    """Connectors read the columns of a run at their places too."""
    record, ids, value = _value(ROWS, [16], sizes)
    columns = IdColumn(ids).wire + BodyBlock(list(record.bodies)).data
    before = records.Run(owner="o", versions=record.versions).SerializeToString()
    times = records.Run(ts=record.ts).SerializeToString()
    assert joined(value) == before + times + columns


def test_bodies_that_look_like_a_column_are_no_column() -> None:
    """Bodies of different lengths with the sum of equal ones, one of which has the prefix where the next would be."""
    bodies = [b"abcd", b"ab\x32\x04ef", b"gh"]
    before = records.Run(owner="o", ts=[NOW, NOW + 1, NOW + 2]).SerializeToString()
    packed = PackedRun(before + IdColumn(["a", "b", "c"]).wire + BodyBlock(bodies).data)
    assert packed.cells is None
    assert packed.times.tolist() == [NOW, NOW + 1, NOW + 2]


def test_an_id_that_is_a_part_of_another_cell_is_not_found_there(database: RocksDatabase) -> None:
    """Cells are searched as bytes: a find in the middle of one, or in two of them, is none."""
    ids = ["abcabc" if row % 2 else f"c\x22\x06ab{row % 10}" for row in range(ROWS)]
    ids[7] = "bcabca"
    times = [NOW + 1_000 * row for row in range(ROWS)]
    bodies = [b"abcabc"] * ROWS
    value = divided(records.Run(owner="o", ts=times), IdColumn(ids), BodyBlock(bodies))
    run = StoredRun(database, KEY, value, 0)
    for row, message_id in enumerate(ids):
        found = run.find(database, times[row], message_id)
        assert found is not None
        assert found[0] == row


def test_damage_is_found_in_the_group_of_the_row_and_nowhere_else(database: RocksDatabase) -> None:
    """R2: what was changed on disk is reported and never answered; the other groups can be read."""
    faults: list[StoreError] = []
    database.on_fault = faults.append
    record, ids, value = _value(ROWS, [6], [40])
    groups = read_head(value)
    assert groups is not None
    chance = random.Random(5)
    for damaged in range(groups.find(record.ts[-1]) + 1):
        part = groups.part(damaged)
        place = part.start + chance.randrange(part.length)
        broken = bytearray(value)
        broken[place] ^= 1 << chance.randrange(8)
        run = StoredRun(database, KEY, bytes(broken), 0)
        for row in range(ROWS):
            if not part.row <= row < part.row + part.rows:
                # A row of the same time in a damaged group may be the one that is searched.
                if record.ts[row] in record.ts[part.row : part.row + part.rows]:
                    continue
                assert run.find(database, record.ts[row], ids[row]) is not None
                continue
            before = len(faults)
            with pytest.raises(StoreError) as caught:
                run.find(database, record.ts[row], ids[row])
            assert caught.value.code is Code.STORE_CORRUPT
            assert f"rows {part.row} to {part.row + part.rows - 1}" in str(caught.value.details)
            assert len(faults) == before + 1


def test_damage_of_the_head_is_found() -> None:
    _, _, value = _value(ROWS, [6], [40])
    length = head_bytes(value)
    for place in range(length - len(read_head(value).packed), length):  # type: ignore[union-attr]
        broken = bytearray(value)
        broken[place] ^= 1
        assert read_head(bytes(broken)) is None


def test_a_head_is_small() -> None:
    """What is known of a run of 1,024 rows is 600 bytes; so 20 million messages need 12 MB."""
    _, _, value = _value(1_024, [16], [100])
    groups = read_head(value)
    assert isinstance(groups, RowGroups)
    assert len(groups.packed) < 600
    assert head_bytes(value) < 620


def test_only_runs_of_many_rows_and_times_are_divided() -> None:
    ids = IdColumn([str(row) for row in range(ROWS)])
    times = [NOW + 1_000 * row for row in range(ROWS)]
    assert is_divided(records.Run(ts=times), ids)
    assert not is_divided(records.Run(ts=[NOW] * ROWS), ids)
    assert not is_divided(records.Run(ts=times[:9]), IdColumn(ids[:9]))
    for column in ("attempts", "apart", "firsts", "lasts"):
        assert not is_divided(records.Run(ts=times, **{column: [1] * ROWS}), ids)  # type: ignore[arg-type]


@pytest.mark.parametrize("column", ["attempts", "apart", "firsts", "lasts"])
def test_a_run_whose_rows_were_leased_or_have_large_bodies_is_rare(database: RocksDatabase, column: str) -> None:
    record = records.Run(owner="o", ts=[NOW, NOW + 1], ids=["a", "b"], bodies=[b"1", b"2"], **{column: [1, 1]})  # type: ignore[arg-type]
    assert StoredRun(database, KEY, record.SerializeToString(), 0).is_rare


def _stored(ids: Sequence[str], ts: Sequence[int], bodies: Sequence[bytes], **columns: object) -> bytes:
    record = records.Run(owner="o", ts=ts, versions=range(1, len(ts) + 1), **columns)  # type: ignore[arg-type]
    before: bytes = record.SerializeToString()
    return before + IdColumn(list(ids)).wire + BodyBlock(list(bodies)).data


@pytest.mark.parametrize("rows", [1, 15, 16, 500])
def test_the_times_of_a_run_are_read_without_its_other_columns(rows: int) -> None:
    ts = [NOW + row * row for row in range(rows)]
    ids, bodies = [f"id-{row}" for row in range(rows)], [b"*" * (row % 300) for row in range(rows)]
    ways: list[bytes] = [
        _stored(ids, ts, bodies),
        _stored(ids, ts, bodies, priorities=[7] * rows, headers=[b"h"] * rows),
        records.Run(owner="o" * 200, ts=ts, session=b"s" * 16, first=300, bodies=bodies).SerializeToString(),
        # Its ids are in the record, before its times.
        records.Run(owner="o", ts=ts, ids=ids, bodies=bodies).SerializeToString(),
    ]
    if rows > ROWS:
        record = records.Run(owner="o", ts=ts, priorities=[7] * rows)
        ways += [joined(divided(records.Run(owner="o", ts=ts), IdColumn(ids), BodyBlock(bodies)))]
        ways += [joined(divided(record, IdColumn(["id"] * rows), BodyBlock([b"b"] * rows)))]
    for stored in ways:
        assert list(times_in(stored)) == ts
    assert list(times_in(b"")) == []
