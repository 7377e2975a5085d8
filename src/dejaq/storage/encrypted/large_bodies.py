"""The large bodies of encrypted topics: sealed part by part."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from dejaq.domain.bodies.large import SEALED_PART_BYTES_MAX, Declared, Reference, Seal
from dejaq.domain.topic import Topic
from dejaq.errors import Code, error_of
from dejaq.storage.base import Storage
from dejaq.storage.encrypted.keyring import Keyring
from dejaq.storage.encrypted.large_cipher import LargeCipher


class EncryptedBodies:
    """Implements `storage.base.Bodies` on the large bodies of another storage."""

    def __init__(self, inner: Storage, keyring: Keyring, encrypts: Callable[[Topic], bool]) -> None:
        self._inner = inner
        self._keyring = keyring
        self._encrypts = encrypts

    async def upload(
        self, topic: Topic, bucket: int, declared: Declared, parts: AsyncIterator[bytes], now: int
    ) -> Reference:
        """Verify and seal each part on its way to the store."""
        if not self._encrypts(topic):
            return await self._inner.bodies.upload(topic, bucket, declared, parts, now)
        large = (await self._keyring.ciphers_of(topic)).large
        sealed = _sealed_parts(large, declared, parts)
        reference = await self._inner.bodies.upload(topic, bucket, large.declared(declared), sealed, now)
        return large.outer(reference)

    async def find(self, topic: Topic, bucket: int, declared: Declared, now: int) -> Reference | None:
        """A body with this content."""
        if not self._encrypts(topic):
            return await self._inner.bodies.find(topic, bucket, declared, now)
        large = (await self._keyring.ciphers_of(topic)).large
        found = await self._inner.bodies.find(topic, bucket, large.declared(declared), now)
        return None if found is None else large.outer(found)

    async def part(self, topic: Topic, bucket: int, reference: Reference, part: int) -> bytes:
        """One part, opened."""
        if not self._encrypts(topic):
            return await self._inner.bodies.part(topic, bucket, reference, part)
        large = (await self._keyring.ciphers_of(topic)).large
        stored = await self._inner.bodies.part(topic, bucket, large.inner(reference), part)
        return large.open_part(reference, part, stored)

    async def reclaim(self, now: int) -> int:
        """Reclaim in the inner storage."""
        return await self._inner.bodies.reclaim(now)


async def _sealed_parts(cipher: LargeCipher, declared: Declared, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    seal = Seal(part_bytes_max=SEALED_PART_BYTES_MAX)
    async for part in parts:
        seal.add(part)
        if seal.over(declared):
            break
        yield cipher.seal_part(declared, seal.count - 1, part)
    if not seal.fits(declared):
        raise error_of(Code.INVALID_ARGUMENT, "the parts of the upload are not what its head says")
