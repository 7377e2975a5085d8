"""Large bodies of a storage and of the memory model: uploaded to both, and gone from both when the storage says so."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass

from dejaq import limits
from dejaq.domain.large import Reference, declare, sealed_parts
from dejaq.domain.topic import Topic
from dejaq.errors import Missing
from dejaq.storage.base import Storage
from dejaq.storage.memory import MemoryStorage


@dataclass(slots=True)
class _Upload:
    """One body, as the storage and as the model know it."""

    real: Reference
    model: Reference
    content: bytes
    bucket: int
    # When it was last uploaded, named or in use.
    touched: int
    # Whether a message may have referred to it, with which it may go at once.
    named: bool = False


class UploadPairs:
    """The uploads that are there. When one that nobody needs goes is the storage's choice, and the model follows."""

    def __init__(self) -> None:
        self._uploads: list[_Upload] = []
        self._models: dict[bytes, bytes] = {}

    def __len__(self) -> int:
        return len(self._uploads)

    def body(self, pick: int) -> bytes | None:
        """A body that refers to one of them in the storage; None without any."""
        return self._uploads[pick % len(self._uploads)].real.pack() if self._uploads else None

    def in_model(self, body: bytes) -> bytes:
        """What the model has as its body where the storage has this one."""
        return self._models.get(body, body)

    async def add(
        self, real: Storage, model: MemoryStorage, topic: Topic, bucket: int, content: bytes, now: int
    ) -> None:
        """Upload a body to both."""
        parts = list(sealed_parts(content))
        declared = declare(parts, len(content))
        known, twin = [
            await storage.bodies.upload(topic, bucket, declared, _each(parts), now) for storage in (real, model)
        ]
        self._uploads.append(_Upload(known, twin, content, bucket, now))
        self._models[known.pack()] = twin.pack()

    def named(self, bodies: Iterable[bytes | None], now: int) -> None:
        """Messages are about to have these bodies."""
        bodies = set(bodies)
        for upload in self._uploads:
            if upload.real.pack() in bodies:
                upload.touched, upload.named = now, True

    def look(self, model: MemoryStorage, now: int) -> None:
        """See which are in use."""
        used = model.bodies.used()
        for upload in self._uploads:
            if upload.model.number in used:
                upload.touched = now

    async def follow(self, real: Storage, model: MemoryStorage, topic: Topic, now: int) -> None:
        """Those that the storage let go are gone from the model too; none may be that is needed."""
        used = model.bodies.used()
        for upload in list(self._uploads):
            try:
                assert await real.bodies.part(topic, upload.bucket, upload.real, 0) == upload.content
            except Missing:
                assert upload.model.number not in used, "a large body is gone that a message refers to"
                late = now >= upload.touched + limits.UPLOAD_KEEP_MS
                assert late or upload.named, "an upload is gone before its time was over"
                model.bodies.drop(upload.model)
                self._uploads.remove(upload)

    async def reclaim(self, real: Storage, model: MemoryStorage, topic: Topic, now: int) -> None:
        """Have the storage remove what nobody needs; nothing of that may be left."""
        await real.bodies.reclaim(now)
        await self.follow(real, model, topic, now)
        used = model.bodies.used()
        for upload in self._uploads:
            needed = upload.model.number in used or now < upload.touched + limits.UPLOAD_KEEP_MS
            assert needed, "a large body is left that nobody refers to"


async def _each(parts: Iterable[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part
