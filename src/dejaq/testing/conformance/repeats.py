"""Short ways to act on a topic with a deduplication window."""

from __future__ import annotations

from dejaq.errors import Code
from dejaq.testing.conformance.scene import Scene

WINDOW_MS = 60_000


async def begin(scene: Scene, *, buckets: int | None = None, **settings: object) -> None:
    """Create a topic with a window and make it the scene's topic."""
    scene.topic = await scene.new_topic("once", buckets=buckets, dedup_ms=WINDOW_MS, **settings)


async def again(scene: Scene, *ids: str, body: bytes = b"body", delay: int = 0) -> list[Code]:
    """Create messages with these ids, in a batch of a new session."""
    batch = scene.batch(ids, delays=[delay] * len(ids), bodies=[body] * len(ids))
    return await scene.create(batch)
