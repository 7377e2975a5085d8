"""How much of the commit log runs need: the counts of a file are exact, also while it is emptied."""

from __future__ import annotations

import pytest

from dejaq.storage.commit_log.record import FRAME_HEADER_BYTES, FrameAddress
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import Batch, new_batch
from dejaq.storage.rocksdb.engine.frame_uses import FrameUses, unpack_count

TOPIC = 5
FIRST, SECOND = FrameAddress(1, 100, 50), FrameAddress(1, 200, 70)


@pytest.fixture
def uses() -> FrameUses:
    """Two runs in one file."""
    made = FrameUses()
    batch = new_batch()
    for name in (b"one", b"two"):
        batch.put_frame(name, b"value", TOPIC)
    batch.place_frames([FIRST, SECOND])
    made.record(batch, 7)
    assert stored(batch) == (2, 50 + 70 + 2 * FRAME_HEADER_BYTES)
    return made


def released(*addresses: FrameAddress) -> Batch:
    batch = new_batch()
    batch.released = [(TOPIC, address) for address in addresses]
    return batch


def stored(batch: Batch) -> tuple[int, int] | None:
    """What a change says of the file."""
    found = [value for _, key, value in batch if key == keys.log_use(TOPIC, 1)]
    return unpack_count(found[-1]) if found and found[-1] else None


def test_a_file_is_free_when_the_tables_have_the_removal_of_its_last_run(uses: FrameUses) -> None:
    batch = released(FIRST)
    uses.record(batch, 8)
    assert stored(batch) == (1, 70 + FRAME_HEADER_BYTES)
    assert not uses.is_free(1, 100)
    last = released(SECOND)
    uses.record(last, 9)
    assert stored(last) is None
    assert uses.live_bytes(1) == 0
    assert not uses.is_free(1, 8)
    assert uses.is_free(1, 9)
    assert uses.is_free(2, 9)


def test_a_run_that_was_moved_is_not_released_again_by_its_object_in_memory(uses: FrameUses) -> None:
    """It was counted twice while the rest of its file was still to be moved, and the file was removed too early."""
    uses.record(released(FIRST), 8)
    uses.moved(1, FIRST.offset + 1)
    again = released(FIRST)
    uses.record(again, 9)
    assert len(again) == 0
    assert uses.live_bytes(1) == 70 + FRAME_HEADER_BYTES


def test_a_run_that_is_made_and_removed_by_one_change_is_not_counted(uses: FrameUses) -> None:
    batch = new_batch()
    frame = batch.put_frame(b"three", b"value", TOPIC)
    batch.released.append((TOPIC, frame))
    batch.place_frames([FrameAddress(1, 300, 10)])
    uses.record(batch, 8)
    assert uses.live_bytes(1) == 50 + 70 + 2 * FRAME_HEADER_BYTES


def test_a_dropped_topic_needs_no_file(uses: FrameUses) -> None:
    batch = new_batch()
    batch.dropped_topics.append(TOPIC)
    uses.record(batch, 8)
    assert uses.live_bytes(1) == 0
    assert not uses.is_free(1, 7)
