"""Emptying a file of the commit log: what is needed of it is copied into the database, so that it can be removed.

The file is read from the beginning to the end. Each record says under which keys the database got pointers to its
frames; a frame is needed as long as the database has the same pointer under that key. The work is done in short steps,
and each waits until the one before is durable, so that other changes are not delayed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import NamedTuple

from dejaq.crashpoints import crash_at
from dejaq.storage.commit_log.operations import PUT, Operations
from dejaq.storage.commit_log.reader import LogRecord
from dejaq.storage.commit_log.record import FRAME_HEADER_BYTES, HEADER_BYTES, FrameAddress
from dejaq.storage.commit_log.writer import CommitLog
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.committer import Committer
from dejaq.storage.rocksdb.engine.database import Batch, RocksDatabase, new_batch
from dejaq.storage.rocksdb.engine.frames import MOVED_BATCH, address_in, behind_pointer, unpack_address, unpack_checks

# What is looked at in one step, since the loop waits for it.
_STEP_BYTES = 256 * 1024
_STEP_FRAMES = 200


class _Frame(NamedTuple):
    """A frame as the log has it, and the pointer that the database got."""

    key: bytes
    pointer: bytes
    address: FrameAddress
    data: bytes


async def empty(
    number: int, database: RocksDatabase, log: CommitLog, committer: Committer, stopped: Callable[[], bool]
) -> int:
    """Copy everything that is needed of a file; returns how many bytes that were. Ends early when it is stopped."""
    reader = await asyncio.to_thread(log.reader, number)
    moved = 0
    while records := await asyncio.to_thread(reader.next, _STEP_BYTES, _STEP_FRAMES):
        frames = [frame for record in records for frame in _frames_of(record)]
        for some in _steps(frames):
            await committer.make_room()
            if stopped():
                return moved
            size = _move(number, some, database, committer)
            moved += size
            pending = committer.pending() if size else None
            await (asyncio.shield(pending) if pending is not None else asyncio.sleep(0))
    return moved


def _move(number: int, frames: list[_Frame], database: RocksDatabase, committer: Committer) -> int:
    """Copy those frames that the database has pointers to, in one change; returns their bytes."""
    batch, size = new_batch(), 0
    stored = database.get_many([frame.key for frame in frames])
    for frame, value in zip(frames, stored, strict=True):
        if value != frame.pointer and not _is_log_batch_at(frame, value):
            continue
        size += len(frame.data)
        if frame.key.startswith(keys.JOURNAL_FRAME):
            batch.put(keys.JOURNAL + frame.key[1:], frame.data)
            batch.delete(frame.key)
        elif frame.key.startswith(keys.ID_FRAME):
            _move_pieces(batch, frame)
            batch.released.append((keys.topic_of(frame.key), frame.address))
        else:
            batch.put(frame.key, _moved_value(frame, value))
            batch.released.append((keys.topic_of(frame.key), frame.address))
    if size:
        crash_at("storage.before_move")
        committer.write(batch)
        crash_at("storage.after_move")
        committer.uses.moved(number, frames[-1].address.offset + 1)
        for frame in frames:
            if frame.key.startswith((keys.RUN, keys.ID_FRAME)):
                database.on_moved(frame.key)
    return size


def _move_pieces(batch: Batch, frame: _Frame) -> None:
    """Each piece of entries of ids becomes a record of its own, because single ones are read."""
    batch.delete(frame.key)
    number, first = keys.pair_of(frame.key)
    size, checks = unpack_checks(behind_pointer(frame.pointer))
    for piece in range(len(checks)):
        key = keys.pair(keys.ID_PIECE, keys.topic_of(frame.key), number, first + piece)
        batch.put(key, frame.data[piece * size : (piece + 1) * size])


def _is_log_batch_at(frame: _Frame, value: bytes | None) -> bool:
    """Whether a batch of a log is still in the frame, although what is stored behind its address has changed."""
    return frame.key.startswith(keys.LOG_BATCH) and value is not None and address_in(value) == frame.address


def _moved_value(frame: _Frame, value: bytes | None) -> bytes:
    """What the database gets in the place of a pointer."""
    if value is None or not frame.key.startswith(keys.LOG_BATCH):
        return frame.data
    return MOVED_BATCH + behind_pointer(value) + frame.data


def _frames_of(record: LogRecord) -> Iterator[_Frame]:
    """The frames of a record, in their order."""
    if not record.header.frame_bytes:
        return
    # Of the bytes of the record, the frames are the first.
    begin = record.offset + HEADER_BYTES - FRAME_HEADER_BYTES
    for kind, key, value in Operations.decode(record.operations):
        if kind != PUT:
            continue
        if key.startswith(keys.JOURNAL_FRAME):
            address = unpack_address(value)
        elif not key.startswith(keys.FRAME_TABLES) or (found := address_in(value)) is None:
            continue
        else:
            address = found
        start = address.offset - begin
        yield _Frame(key, value, address, record.body[start : start + address.length])


def _steps(frames: list[_Frame]) -> Iterator[list[_Frame]]:
    some: list[_Frame] = []
    size = 0
    for frame in frames:
        some.append(frame)
        size += len(frame.data)
        if size >= _STEP_BYTES or len(some) >= _STEP_FRAMES:
            yield some
            some, size = [], 0
    if some:
        yield some
