"""Changes by id to messages of the far future are made as columns, and differ in nothing from changes row by row."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from functools import partial
from pathlib import Path

import pytest

from dejaq.domain.batch import CreateBatch, LeaseRequest, Outcomes
from dejaq.domain.changes import Cancel, Create, Edit, Edits
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.headers import encode_header_change, encode_headers
from dejaq.domain.ids import ProducerSession
from dejaq.domain.message import Message
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.errors import Code, StoreError
from dejaq.storage.base import Filter, Storage, apply_one
from dejaq.storage.commit_log.reader import file_name
from dejaq.storage.memory.store import MemoryStorage
from dejaq.storage.outbox import CANCELLED, EDITED, MOVED
from dejaq.storage.rocksdb.bodies import row_groups
from dejaq.storage.rocksdb.bodies.row_groups import read_head
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.storage.rocksdb.timeline.far import by_id_steps, group_search, stored_run
from dejaq.storage.rocksdb.timeline.far.finder import find_far
from dejaq.storage.rocksdb.timeline.far.stored_run import OFFSET_BITS
from dejaq.storage.rocksdb.timeline.levels.settings import LevelSettings
from dejaq.testing.model.replay import events_of, read_journal
from dejaq.testing.waiting import eventually

NOW = 1_800_000_000_000
DAY_MS = 86_400_000
BUCKETS = 4
TOPIC = Topic(name="mail", number=1, settings=TopicSettings(buckets=BUCKETS))
SMALL = LevelSettings(merge_runs=4, merge_runs_max=8, near_runs=3, piece_rows=50)
GROUPS = ("o", "other")


class Both:
    """The embedded store and the memory store, which get the same changes and must give the same answers."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path, self.rocks = path, RocksStorage(path, journal=True, levels=SMALL)
        self.memory = MemoryStorage(journal=True)
        self.chance = random.Random(seed)
        self.ids: list[str] = []
        self.now = NOW
        self._sequence = 0

    async def begin(self) -> None:
        for store in self.stores:
            await store.open(NOW)
            await store.put_topic(TOPIC, DIRECT_CALL)

    @property
    def stores(self) -> tuple[Storage, Storage]:
        return self.rocks, self.memory

    async def create(self, count: int, *, plain: bool, group: str = "o", step_ms: int = 1) -> None:
        chance = self.chance
        batch = CreateBatch(
            owner=group,
            session=ProducerSession(NOW, 5),
            sequence=self._sequence,
            ts=[NOW + DAY_MS + chance.randrange(DAY_MS) // step_ms * step_ms for _ in range(count)],
            bodies=[chance.randbytes(100 if plain else chance.choice([0, 3, 20, 130])) for _ in range(count)],
            ids=[f"own-{self._sequence + row:0{4 if plain else 1}}" for row in range(count)],
            priorities=None if plain else [chance.choice([0, 0, 7]) for _ in range(count)],
            headers=None if plain else [encode_headers({"k": str(row)} if row % 3 else {}) for row in range(count)],
        )
        self._sequence += count
        for store in self.stores:
            assert not (await apply_one(store, Create(TOPIC, batch), self.now, DIRECT_CALL)).codes
        self.ids += batch.ids or []

    async def restart(self) -> None:
        """Everything is on disk then."""
        await self.rocks.close()
        self.rocks = RocksStorage(self.path, journal=True, levels=SMALL)
        await self.rocks.open(NOW)

    async def change(self, change: Cancel | Edit) -> Outcomes:
        ours, theirs = [await apply_one(store, change, self.now, DIRECT_CALL) for store in self.stores]
        assert ours.codes == theirs.codes
        return ours

    async def check(self) -> None:
        """Both have the same messages, found by id and in order."""
        ours, theirs = [await store.get(TOPIC, self.ids, self.now) for store in self.stores]
        assert list(map(_plain, ours)) == list(map(_plain, theirs))
        pages = [(await store.browse(TOPIC, Filter(), None, len(self.ids), self.now)).messages for store in self.stores]
        assert list(map(_plain, pages[0])) == list(map(_plain, pages[1]))
        by_id = {message.id: message for message in pages[0]}
        assert ours == [by_id.get(one) for one in self.ids]
        for step in (60_000, DAY_MS):
            found = [await store.histogram(TOPIC, Filter(), step, self.now) for store in self.stores]
            assert found[0] == found[1]

    async def journalled(self) -> list[list[tuple[str, str, int | None, int | None]]]:
        """The changes of ids that each journal has, as far as an order within one change does not matter."""
        return [
            sorted(
                (event.kind, event.id, event.ts, event.body_crc)
                for record in await read_journal(store, 0)
                for event in events_of(record)
                if event.kind in (MOVED, EDITED, CANCELLED)
            )
            for store in self.stores
        ]

    async def close(self) -> None:
        for store in self.stores:
            await store.close()


def _plain(message: Message | None) -> object:
    if message is None:
        return None
    values = (message.ts, message.body, message.priority, dict(message.headers), message.producer_group)
    return (message.id, message.bucket, *values)


def _some(both: Both, count: int) -> list[str]:
    """Ids in random order: pending ones, some that are gone, and one that never was."""
    return [*both.chance.sample(both.ids, count - 1), "nobody"]


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs of a test are short, and have groups nevertheless."""
    monkeypatch.setattr(row_groups, "ROWS_MIN", 8)
    monkeypatch.setattr(row_groups, "GROUP_ROWS_MAX", 6)


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("plain", [False, True])
async def test_changes_of_many_ids_are_those_of_the_memory_store(
    tmp_path: Path, small_groups: None, plain: bool, merged: bool
) -> None:
    both = Both(tmp_path, seed=3)
    await both.begin()
    for number in range(12):
        await both.create(100, plain=plain, group=GROUPS[number % 4 == 3])
    if merged:
        await both.rocks.merger.settle()
    # A run that is being merged is none of them.
    far = partial(find_far, both.rocks._state(TOPIC), both.ids)
    await eventually(lambda: len(far()) > 1_000, within=30, what="most messages are in runs that rest")
    chance = both.chance
    for round_number in range(6):
        ids = _some(both, 150)
        times = [NOW + DAY_MS + chance.randrange(DAY_MS) for _ in ids]
        await both.change(Edit(TOPIC, "o", Edits(ids, ts=times)))
        ids = _some(both, 80)
        await both.change(Edit(TOPIC, "o", Edits(ids, bodies=[chance.choice([None, b"new"]) for _ in ids])))
        change = encode_header_change({"k": None, "n": "x"})
        await both.change(Edit(TOPIC, "o", Edits(_some(both, 40), headers=[change] * 40, priorities=[3] * 40)))
        # Few rows, which are not scattered; and some that become due within the minute.
        await both.change(Edit(TOPIC, "o", Edits(_some(both, 4), ts=[both.now + 1_000] * 4)))
        outcomes = await both.change(Cancel(TOPIC, "o", _some(both, 60)))
        assert Code.NOT_OWNER in outcomes.codes.values()
        await both.check()
        if round_number == 3 and merged:
            await both.rocks.merger.settle()
            await both.check()
    ours, theirs = await both.journalled()
    assert ours == theirs
    await both.close()


@pytest.mark.parametrize("plain", [False, True])
async def test_rows_with_the_same_time_are_found_in_their_groups(
    tmp_path: Path, small_groups: None, monkeypatch: pytest.MonkeyPatch, plain: bool
) -> None:
    """Also where many rows of a run have one time, in one group or over several; some groups are read together."""
    monkeypatch.setattr(group_search, "ROWS_AT_ONCE", 50)
    both = Both(tmp_path, seed=7)
    await both.begin()
    for number in range(6):
        await both.create(100, plain=plain or number == 5, step_ms=3_600_000)
    await both.rocks.merger.settle()
    await both.restart()
    far = find_far(both.rocks._state(TOPIC), both.ids)
    assert len(far) == len(both.ids)
    assert {far.runs[number].is_in_file(both.rocks._database) for number in far.of_runs.tolist()} == {True}
    await both.check()
    await both.change(Cancel(TOPIC, "o", _some(both, 200)))
    await both.check()
    await both.close()


@pytest.mark.parametrize("cut", [False, True])
async def test_damage_is_found_before_a_row_is_answered(tmp_path: Path, small_groups: None, cut: bool) -> None:
    """R2: a group that was changed on disk, or that its file does not have any more, is reported with its rows."""
    both = Both(tmp_path, seed=8)
    await both.begin()
    await both.create(100, plain=True)
    await both.restart()
    state = both.rocks._state(TOPIC)
    far = find_far(state, both.ids)
    last = int(far.times.argmax())
    run, row = far.runs[far.of_runs[last]], int(far.rows[last])
    assert run.place.address is not None
    groups = read_head(both.rocks._database.log.read(run.place.address))  # type: ignore[union-attr]
    assert groups is not None
    part = groups.part(row // groups.per_group)
    place = run.origin % (1 << OFFSET_BITS) - groups.start + part.start
    (file,) = tmp_path.rglob(file_name(run.place.address.file))
    content = bytearray(file.read_bytes())
    content[place + 5] ^= 4
    file.write_bytes(content[: place + 5] if cut else content)
    elsewhere = [both.ids[item] for item, at in zip(far.items, far.rows, strict=True) if at < part.row]
    assert all(await both.rocks.get(TOPIC, elsewhere, NOW))
    with pytest.raises(StoreError, match="damaged") as caught:
        await both.rocks.get(TOPIC, both.ids, NOW)
    assert caught.value.code is Code.STORE_CORRUPT
    assert f"rows {part.row} to {part.row + part.rows - 1}" in str(caught.value.details)
    assert both.rocks.corrupt
    await both.close()


async def test_every_row_of_a_run_may_leave_at_once(tmp_path: Path) -> None:
    both = Both(tmp_path, seed=4)
    await both.begin()
    await both.create(40, plain=True)
    await both.create(40, plain=True)
    await both.change(Cancel(TOPIC, "o", both.ids[:40]))
    await both.check()
    await both.change(Edit(TOPIC, "o", Edits(both.ids[40:], ts=[NOW + 2 * DAY_MS + row for row in range(40)])))
    await both.check()
    await both.change(Cancel(TOPIC, "o", both.ids[40:]))
    state = both.rocks._state(TOPIC)
    assert state.total == 0
    assert not state.index.has_entries
    await both.close()


async def test_a_version_decides_and_an_id_may_occur_twice(tmp_path: Path) -> None:
    both = Both(tmp_path, seed=5)
    await both.begin()
    await both.create(100, plain=True)
    ids = both.ids[:50]
    versions = [message.version for message in await both.rocks.get(TOPIC, ids, NOW) if message is not None]
    versions[7] += 1
    change = Edit(TOPIC, "o", Edits(ids, bodies=[b"v"] * 50, versions=versions))
    assert (await apply_one(both.rocks, change, NOW, DIRECT_CALL)).codes == {7: Code.VERSION_CONFLICT}
    assert set((await apply_one(both.rocks, change, NOW, DIRECT_CALL)).codes.values()) == {Code.VERSION_CONFLICT}
    await apply_one(
        both.memory, Edit(TOPIC, "o", Edits(ids, bodies=[b"v"] * 7 + [None] + [b"v"] * 42)), NOW, DIRECT_CALL
    )
    twice = [*both.ids[50:80], *both.ids[60:70]]
    await both.change(Edit(TOPIC, "o", Edits(twice, ts=[NOW + DAY_MS + row for row in range(40)])))
    await both.check()
    assert len((await both.change(Cancel(TOPIC, "o", twice))).codes) == 10
    await both.check()
    await both.close()


async def test_rows_with_a_lease_are_decided_one_by_one(tmp_path: Path) -> None:
    both = Both(tmp_path, seed=6)
    await both.begin()
    for _ in range(3):
        await both.create(100, plain=True)
    both.now = min(message.ts for message in await both.memory.get(TOPIC, both.ids, NOW) if message) + DAY_MS // 2
    held: list[list[str]] = []
    for store in both.stores:
        request = LeaseRequest(range(BUCKETS), "c", both.now, both.now + 10_000, 20)
        lease = await store.lease(TOPIC, request, both.now, DIRECT_CALL)
        held.append([] if lease is None else lease.ids())
    assert held[0] == held[1]
    ids = [*held[0][:10], *both.ids[-60:]]
    outcomes = await both.change(Cancel(TOPIC, "o", list(dict.fromkeys(ids))))
    assert [outcomes[row] for row in range(10)] == [Code.LEASED] * 10
    both.now += 20_000
    await both.change(Edit(TOPIC, "o", Edits(held[0], ts=[both.now + DAY_MS + row for row in range(20)])))
    await both.check()
    await both.close()


async def test_other_tasks_run_while_many_ids_are_read_or_changed(
    tmp_path: Path, small_groups: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they change meanwhile is neither changed again nor lost, and each message is counted once."""
    monkeypatch.setattr(stored_run, "FIND_IDS_MAX", 20)
    monkeypatch.setattr(by_id_steps, "PART_IDS", 60)
    both = Both(tmp_path, seed=9)
    await both.begin()
    for _ in range(4):
        await both.create(100, plain=True)
    await both.restart()
    rocks, chance = both.rocks, both.chance
    gone: set[str] = set()
    asked, over = 0, False

    async def disturb() -> None:
        """Cancel and move a few messages between all steps; runs are merged meanwhile too."""
        nonlocal asked
        while not over:
            ids = chance.sample(both.ids, 2)
            outcomes = await apply_one(rocks, Cancel(TOPIC, "o", ids), NOW, DIRECT_CALL)
            gone.update(one for row, one in enumerate(ids) if outcomes[row] is Code.OK)
            await apply_one(rocks, Edit(TOPIC, "o", Edits(ids[:1], ts=[NOW + 3 * DAY_MS])), NOW, DIRECT_CALL)
            asked += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(disturb())
    for number in range(6):
        before, ids = set(gone), chance.sample(both.ids, 300)
        change = Edit(TOPIC, "o", Edits(ids, bodies=[b"%d" % number] * 300)) if number < 5 else Cancel(TOPIC, "o", ids)
        outcomes = await apply_one(rocks, change, NOW, DIRECT_CALL)
        missing = {ids[row] for row, code in outcomes.codes.items() if code is Code.NOT_FOUND}
        assert len(missing) == len(outcomes.codes)
        assert before & set(ids) <= missing <= gone
        if number == 5:
            gone.update(ids)
    over = True
    await task
    assert asked > 12
    found = await rocks.get(TOPIC, both.ids, NOW)
    assert {one for one, message in zip(both.ids, found, strict=True) if message is None} == gone
    assert await rocks.count(TOPIC, Filter(), NOW) == len(both.ids) - len(gone)
    await both.restart()
    page = await both.rocks.browse(TOPIC, Filter(), None, len(both.ids), NOW)
    assert {message.id for message in page.messages} == set(both.ids) - gone
    await both.close()


async def test_the_parts_of_a_large_change_have_their_own_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Versions, times and headers belong to the ids of their part; the answer is one."""
    monkeypatch.setattr(by_id_steps, "LARGE_IDS", 20)
    monkeypatch.setattr(stored_run, "FIND_IDS_MAX", 20)
    monkeypatch.setattr(by_id_steps, "PART_IDS", 40)
    both = Both(tmp_path, seed=10)
    await both.begin()
    await both.create(100, plain=False)
    ids = _some(both, 90)
    change = encode_header_change({"part": "x"})
    times = [NOW + DAY_MS + chance for chance in range(90)]
    edits = Edits(
        ids, ts=times, priorities=list(range(90)), headers=[change] * 90, bodies=[b"%d" % n for n in range(90)]
    )
    outcomes = await both.change(Edit(TOPIC, "o", edits))
    assert outcomes.codes == {89: Code.NOT_FOUND}
    await both.check()
    versions = [message.version for message in await both.rocks.get(TOPIC, ids[:89], NOW) if message is not None]
    versions[50] += 1
    outcomes = await apply_one(both.rocks, Cancel(TOPIC, "o", ids[:89], versions), NOW, DIRECT_CALL)
    assert outcomes.codes == {50: Code.VERSION_CONFLICT}
    gone = dataclasses.replace(TOPIC, number=7, name="gone")
    answer = (await both.rocks.apply((Cancel(gone, "o", ids),), NOW, DIRECT_CALL))[0]
    assert answer == Outcomes(90, dict.fromkeys(range(90), Code.NOT_FOUND))
    await both.close()
