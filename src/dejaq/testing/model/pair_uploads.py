"""Large bodies of a storage and of the memory model: uploaded to both, and removed from both when the storage does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass

from dejaq import limits
from dejaq.domain.bodies.large import Reference, declare, sealed_parts
from dejaq.domain.topic import Topic
from dejaq.errors import Missing
from dejaq.storage.base import Storage
from dejaq.storage.memory.store import MemoryStorage


@dataclass(slots=True)
class _Upload:
    """One body in the storage and in the model."""

    real: Reference
    model: Reference
    content: bytes
    bucket: int
    # When the body was last uploaded, named or in use.
    touched: int
    # Whether a message may have referred to the body, so that the body may be removed with that message at once.
    named: bool = False


class UploadPairs:
    """The uploads that exist. The storage chooses when to remove a body without references; the model does the same."""

    def __init__(self) -> None:
        self._uploads: list[_Upload] = []
        self._models: dict[bytes, bytes] = {}

    def __len__(self) -> int:
        return len(self._uploads)

    def body(self, pick: int) -> bytes | None:
        """A body that refers to one of the uploads in the storage; None without any."""
        return self._uploads[pick % len(self._uploads)].real.pack() if self._uploads else None

    def in_model(self, body: bytes) -> bytes:
        """The body in the model that corresponds to this body in the storage."""
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
        """Record that messages are about to have these bodies."""
        bodies = set(bodies)
        for upload in self._uploads:
            if upload.real.pack() in bodies:
                upload.touched, upload.named = now, True

    def look(self, model: MemoryStorage, now: int) -> None:
        """Record which bodies are in use."""
        used = model.bodies.used()
        for upload in self._uploads:
            if upload.model.number in used:
                upload.touched = now

    async def follow(self, real: Storage, model: MemoryStorage, topic: Topic, now: int) -> None:
        """Remove from the model the uploads that the storage removed; none of them may be needed."""
        used = model.bodies.used()
        for upload in list(self._uploads):
            try:
                assert await real.bodies.part(topic, upload.bucket, upload.real, 0) == upload.content
            except Missing:
                assert upload.model.number not in used, "the storage removed a large body that a message refers to"
                late = now >= upload.touched + limits.UPLOAD_KEEP_MS
                assert late or upload.named, "the storage removed an upload before its time was over"
                model.bodies.drop(upload.model)
                self._uploads.remove(upload)

    async def reclaim(self, real: Storage, model: MemoryStorage, topic: Topic, now: int) -> None:
        """Make the storage remove bodies that nobody needs; none of them may remain."""
        await real.bodies.reclaim(now)
        await self.follow(real, model, topic, now)
        used = model.bodies.used()
        for upload in self._uploads:
            needed = upload.model.number in used or now < upload.touched + limits.UPLOAD_KEEP_MS
            assert needed, "the storage still has a large body that nobody refers to"


async def _each(parts: Iterable[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part
