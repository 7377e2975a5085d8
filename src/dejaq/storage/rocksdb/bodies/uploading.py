"""Large bodies of the embedded store, uploaded and read in parts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from dejaq import limits
from dejaq.crashpoints import crash_at
from dejaq.domain.bodies.large import Declared, Reference, Seal
from dejaq.domain.topic import Topic
from dejaq.errors import Code, DejaqError, Unavailable, error_of
from dejaq.storage.rocksdb.bodies.large import LargeBodies
from dejaq.storage.rocksdb.engine.committer import Committer
from dejaq.storage.rocksdb.engine.database import Batch, new_batch


class RocksBodies:
    """Implements `storage.base.Bodies` on the store's own database and group commit."""

    def __init__(self, large: LargeBodies, committer: Committer, check_working: Callable[[], None]) -> None:
        self._large = large
        self._committer = committer
        self._check_working = check_working
        self._closed = False

    def close(self) -> None:
        """Called before the database is closed: an upload in progress ends, and is removed at the next start."""
        self._closed = True

    async def upload(
        self, topic: Topic, bucket: int, declared: Declared, parts: AsyncIterator[bytes], now: int
    ) -> Reference:
        """Write each part, and wait until it is durable before the next part is requested."""
        self._check()
        batch = new_batch()
        reference = self._large.begin(batch, declared)
        try:
            await self._durable(batch)
            await self._take(reference, declared, parts)
        except BaseException:
            # Nobody waits for this write: after a crash before it is durable, the next start removes the upload.
            self._drop(reference)
            raise
        until = now + limits.UPLOAD_KEEP_MS
        known = await self._same(reference) if topic.settings.share_bodies else None
        if known is not None:
            self._drop(reference)
            await self._keep(known, until)
            return known
        batch = new_batch()
        self._large.finish(batch, reference, until)
        await self._durable(batch)
        return reference

    async def _take(self, reference: Reference, declared: Declared, parts: AsyncIterator[bytes]) -> None:
        seal = Seal()
        async for part in parts:
            seal.add(part)
            if seal.over(reference):
                break
            batch = new_batch()
            self._large.put_part(batch, reference, seal.count - 1, part)
            await self._durable(batch)
            crash_at("storage.after_part")
        if not seal.fits(declared):
            raise error_of(Code.INVALID_ARGUMENT, "the parts of the upload are not what its head says")

    async def find(self, topic: Topic, bucket: int, declared: Declared, now: int) -> Reference | None:
        """A body that matches all 256 bits of the digest."""
        self._check()
        for known in self._large.alike(declared.digest):
            if (known.size, known.stored) == (declared.size, declared.stored):
                await self._keep(known, now + limits.UPLOAD_KEEP_MS)
                return known
        return None

    async def _keep(self, known: Reference, until: int) -> None:
        batch = new_batch()
        self._large.keep(batch, known.number, until)
        if len(batch):
            await self._durable(batch)

    async def part(self, topic: Topic, bucket: int, reference: Reference, part: int) -> bytes:
        """One part."""
        self._check()
        return self._large.part(reference, part)

    async def reclaim(self, now: int) -> int:
        """Remove the bodies that no message referred to in time."""
        self._check()
        batch = new_batch()
        count = self._large.reclaim(batch, now)
        if count:
            await asyncio.shield(self._committer.write(batch))
        return count

    async def _same(self, fresh: Reference) -> Reference | None:
        """An existing body that equals, byte for byte, the body that was just uploaded."""
        for known in self._large.alike(fresh.digest):
            if (known.size, known.stored) == (fresh.size, fresh.stored) and await self._equal(known, fresh):
                return known
        return None

    async def _equal(self, known: Reference, fresh: Reference) -> bool:
        for part in range(known.parts):
            if self._large.stored_part(known, part) != self._large.stored_part(fresh, part):
                return False
            await asyncio.sleep(0)
        # The body may have been removed during the comparison.
        return known in self._large.alike(known.digest)

    def _drop(self, reference: Reference) -> None:
        if self._closed:
            return
        batch = new_batch()
        self._large.abandon(batch, reference)
        with suppress(DejaqError):
            self._committer.write(batch)

    def _check(self) -> None:
        self._check_working()
        if self._closed:
            raise Unavailable("the store was opened again meanwhile; repeat the upload")

    async def _durable(self, batch: Batch) -> None:
        self._check()
        await asyncio.shield(self._committer.write(batch))
