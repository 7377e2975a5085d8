"""Short functions to use the log of a scene."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

from dejaq.domain.topic import Topic, TopicKind
from dejaq.errors import Code, DejaqError, Refused
from dejaq.storage.log.base import Append, Appended, BucketOffsets, KeepsLogs, LogName, LogStorage, StoredBatch
from dejaq.testing.conformance.scene import Scene

SESSION = bytes(range(1, 11))
ALL = 64 * 1024 * 1024


class LogScene:
    """A scene with a topic whose log is used. Its batches have one byte for each message, unless they are given."""

    def __init__(self, scene: Scene, topic: Topic) -> None:
        self.scene = scene
        self.topic = topic

    @classmethod
    async def begin(cls, scene: Scene, *, buckets: int = 4) -> LogScene:
        """Make the topic."""
        return cls(scene, await scene.new_topic("events", buckets=buckets, kind=TopicKind.LOG))

    @property
    def logs(self) -> LogStorage:
        """The logs of the store, which a restart replaces."""
        storage = self.scene.storage
        assert isinstance(storage, KeepsLogs), "the storage keeps no logs"
        return storage.logs

    async def append(self, *batches: Append) -> list[Appended | Refused]:
        """Append batches."""
        return await self.logs.append(self.topic, batches, self.scene.now, self.scene.context)

    async def add(self, text: bytes, *, bucket: int = 0, rollback_ms: int = 0, name: int | None = None) -> Appended:
        """Append a batch of one message for each byte, which must be accepted."""
        named = None if name is None else LogName(SESSION, name)
        (answer,) = await self.append(Append(bucket, text, len(text), named, rollback_ms=rollback_ms))
        assert isinstance(answer, Appended), f"the batch was refused: {answer!r}"
        return answer

    async def batches(
        self, bucket: int = 0, *, start: int = 0, end: int | None = None, committed: bool = True, bytes_max: int = ALL
    ) -> list[StoredBatch]:
        """Every batch from an offset on, read as often as is necessary."""
        found: list[StoredBatch] = []
        while True:
            part = await self.logs.read(
                self.topic, bucket, start, end=end, bytes_max=bytes_max, committed=committed, now=self.scene.now
            )
            found += part.batches
            if part.next == start:
                return found
            start = part.next

    async def text(self, bucket: int = 0, *, start: int = 0, committed: bool = True) -> bytes:
        """The bytes of every batch from an offset on."""
        return b"".join(batch.records for batch in await self.batches(bucket, start=start, committed=committed))

    async def offsets(self, bucket: int = 0) -> BucketOffsets:
        """The offsets of a bucket."""
        return (await self.logs.offsets(self.topic, self.scene.now))[bucket]

    async def rollback(self, name: int) -> Code:
        """Roll back a batch; OK or the refusal."""
        try:
            await self.logs.rollback(self.topic, LogName(SESSION, name), self.scene.now, self.scene.context)
        except Refused as refusal:
            return refusal.code
        return Code.OK


async def code_of(call: Awaitable[object]) -> Code:
    """OK, or the code of the error that a call raises."""
    try:
        await call
    except DejaqError as error:
        return error.code
    return Code.OK


def check_dense(batches: Sequence[StoredBatch], start: int = 0) -> None:
    """The offsets of the batches have no hole and no overlap, and their times do not decrease."""
    for batch in batches:
        assert batch.base == start, f"a batch begins at {batch.base}, not at {start}"
        start = batch.end
    times = [batch.ts for batch in batches]
    assert times == sorted(times), "a timestamp is before that of an earlier offset"
