"""The window of a bucket never skips a run that is on disk or is being written to disk."""

from __future__ import annotations

from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.timeline.window import Window


def key(time_slice: int, number: int) -> bytes:
    return keys.run(1, 0, time_slice, number, 0)


def test_a_run_that_is_not_yet_visible_on_disk_is_not_skipped() -> None:
    """G2: of two runs of one write, the first is only on disk; the other, before or after it, does not hide it."""
    for left, kept in ((3, 5), (5, 3)):
        window = Window(1, 0)
        disk: list[bytes] = []

        def first_key(start: bytes, end: bytes, disk: list[bytes] = disk) -> bytes | None:
            return min((one for one in disk if start <= one < end), default=None)

        window.left_on_disk(key(left, 1))
        window.reach_for(key(kept, 2), first_key)
        assert (window.cursor <= key(left, 1)) is True
        assert window.next_unloaded(first_key) == left * keys.SLICE_MS
        disk += [key(left, 1)]
        window.removed(disk.pop())
        assert window.next_unloaded(first_key) is None
