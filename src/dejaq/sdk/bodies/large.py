"""Uploads and downloads large bodies in parts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from dejaq import limits
from dejaq.domain.bodies.large import PART_BYTES, Declared, Reference, Unsealing, declare, sealed_parts
from dejaq.domain.bodies.packing import Compression, sealed
from dejaq.domain.ids import buckets_of
from dejaq.errors import Code, DejaqError, error_of
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1 import overseer_pb2 as overseer
from dejaq.sdk.session.seeds import Seeds
from dejaq.sdk.session.settings import ClientSettings

# A slower upload or download is ended with an error.
BYTES_PER_SECOND_MIN = 1_000_000
# How often a body is uploaded again when the broker removed it before a message referred to it.
TRIES = 3


@dataclass(frozen=True, slots=True)
class TopicTerms:
    """The settings of a topic for bodies and attempts, and its number of buckets."""

    buckets: int = 1
    max_body_bytes: int = limits.BODY_BYTES_MAX
    compression: Compression = Compression.NONE
    shares_bodies: bool = False
    inline_bytes_max: int = limits.BODY_BYTES_MAX
    max_attempts: int = 0

    @classmethod
    def of(cls, described: overseer.TopicResponse) -> TopicTerms:
        """The terms from the description of a topic."""
        settings = described.topic.settings
        return cls(
            inline_bytes_max=described.inline_body_bytes_max or limits.BODY_BYTES_MAX,
            buckets=settings.buckets,
            max_body_bytes=settings.max_body_bytes,
            compression=Compression(settings.compression or Compression.NONE),
            shares_bodies=settings.share_bodies,
            max_attempts=settings.max_attempts,
        )

    def inline(self, body: bytes) -> bytes | None:
        """The body as it is stored in its message; None when it is too large for that and must be uploaded in parts."""
        if len(body) > self.inline_bytes_max:
            if self.compression is Compression.NONE or len(body) > limits.DECOMPRESSED_BYTES_MAX:
                return None
            # Compress a part first: its size shows whether compressing the whole body can be enough.
            first = len(sealed(body[:PART_BYTES], self.compression))
            if first * len(body) > 2 * min(PART_BYTES, len(body)) * self.inline_bytes_max:
                return None
        stored = sealed(body, self.compression)
        return stored if len(stored) <= self.inline_bytes_max else None

    def check(self, body: bytes) -> None:
        """Raise BODY_TOO_LARGE before any part of the body is sent."""
        if len(body) > self.max_body_bytes:
            raise error_of(Code.BODY_TOO_LARGE, details=f"{len(body)} bytes, at most {self.max_body_bytes}")


class LargeBodyClient:
    """The large bodies that a client sends and reads."""

    def __init__(self, seeds: Seeds, settings: ClientSettings) -> None:
        self._seeds = seeds
        self._settings = settings

    async def upload(self, topic: str, bucket: int, body: bytes, terms: TopicTerms) -> bytes:
        """Upload a body, unless the broker already has it and may say so; returns the reference to store in the
        message.
        """
        terms.check(body)
        # In a thread: it takes long enough to delay other tasks of the event loop.
        parts, declared = await asyncio.to_thread(_packed, body, terms.compression)
        head = carrier.UploadHead(
            topic=topic, bucket=bucket, size=declared.size, stored=declared.stored, digest=declared.digest
        )
        if terms.shares_bodies:
            found = await self._seeds.call("Carrier.FindBody", head, carrier.BodyReference, patience=self._settings)
            if found.reference:
                return found.reference

        async def frames() -> AsyncIterator[carrier.UploadFrame]:
            yield carrier.UploadFrame(head=head)
            for part in parts:
                yield carrier.UploadFrame(part=part)

        timeout = self._settings.timeout + declared.stored / BYTES_PER_SECOND_MIN
        tries = self._seeds.patience(self._settings)
        while True:
            transport = self._seeds.first()
            try:
                answer = await transport.upload("Carrier.Upload", frames(), carrier.BodyReference, timeout)
                return answer.reference
            except DejaqError as error:
                await tries.after(error, transport)

    async def parts(self, topic: str, message_id: str, reference: Reference) -> AsyncIterator[bytes]:
        """A body in parts of at most 1 MiB each; an outage between two parts only delays the next part.

        Raises BODY_MISSING when its message is gone. Raises BODY_UNREADABLE when the body differs from the body that
        was sent, which is only known after the last part.
        """
        opening = Unsealing(reference)
        request = carrier.DownloadRequest(topic=topic, id=message_id, reference=reference.pack())
        tries = self._seeds.patience(self._settings)
        while request.first_part < reference.parts:
            transport = self._seeds.first()
            try:
                async for part in transport.stream("Carrier.Download", request, carrier.BodyPart):
                    request.first_part += 1
                    tries.reset()
                    yield opening.open(part.data)
                break
            except DejaqError as error:
                await tries.after(error, transport)
        opening.finish()

    async def fetch(self, topic: str, message_id: str, reference: Reference) -> bytes:
        """A whole body."""
        return b"".join([part async for part in self.parts(topic, message_id, reference)])

    async def stored(
        self, topic: str, terms: TopicTerms, ids: Sequence[str], bodies: Sequence[bytes], *, attempt: int = 0
    ) -> tuple[list[bytes], bool]:
        """Bodies as they are stored, and whether some of them refer to large bodies, which are uploaded first.

        A body that occurs several times is uploaded once. When a store with several parts answers BODY_MISSING to that,
        the next `attempt` uploads it for each message.
        """
        column: list[bytes] = []
        known: dict[tuple[int, int], bytes] = {}
        for message_id, body in zip(ids, bodies, strict=True):
            stored = terms.inline(body)
            if stored is None:
                buckets = buckets_of(message_id, terms.buckets)
                bucket = buckets[max(0, attempt - 1) % len(buckets)]
                key = (id(body), bucket if attempt else -1)
                stored = known.get(key) or await self.upload(topic, bucket, body, terms)
                known[key] = stored
            column.append(stored)
        return column, bool(known)


def _packed(body: bytes, compression: Compression) -> tuple[list[bytes], Declared]:
    parts = list(sealed_parts(body, compression))
    return parts, declare(parts, len(body))
