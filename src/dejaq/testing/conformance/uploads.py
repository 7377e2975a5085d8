"""Short functions for the checks that need large bodies."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from dejaq import limits
from dejaq.domain.bodies.large import PART_BYTES, Reference, declare, sealed_parts
from dejaq.domain.topic import Topic
from dejaq.errors import Code
from dejaq.testing.conformance.scene import Scene, refusal_of

BODY, OTHER = bytes(range(256)) * (5 * PART_BYTES // 512), b"other" * (PART_BYTES // 4)
BUCKET = 3


async def each(parts: Iterable[bytes]) -> AsyncIterator[bytes]:
    """The parts, one after the other."""
    for part in parts:
        yield part


async def upload(scene: Scene, body: bytes = BODY, topic: Topic | None = None) -> Reference:
    """Upload a body."""
    parts = list(sealed_parts(body))
    declared = declare(parts, len(body))
    return await scene.storage.bodies.upload(topic or scene.topic, BUCKET, declared, each(parts), scene.now)


async def read(scene: Scene, reference: Reference) -> bytes:
    """The whole body."""
    bodies = scene.storage.bodies
    return b"".join([await bodies.part(scene.topic, BUCKET, reference, n) for n in range(reference.parts)])


async def gone(scene: Scene, reference: Reference) -> bool:
    """Whether a body is removed when its time is over; afterwards the time is over."""
    scene.advance(2 * limits.UPLOAD_KEEP_MS)
    await scene.storage.bodies.reclaim(scene.now)
    return await refusal_of(read(scene, reference)) is Code.BODY_MISSING


async def put(scene: Scene, message_id: str, reference: Reference, topic: Topic | None = None) -> Code:
    """Create a message that refers to a body."""
    batch = scene.batch([message_id], delays=[0], bodies=[reference.pack()])
    batch.large = True
    return (await scene.create(batch, topic))[0]
