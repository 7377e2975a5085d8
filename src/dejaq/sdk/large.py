"""Large bodies on their way to the broker and back, in parts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from dejaq import limits
from dejaq.domain.bodies import Compression, sealed
from dejaq.domain.ids import buckets_of
from dejaq.domain.large import PART_BYTES, Declared, Reference, Unsealing, declare, sealed_parts
from dejaq.errors import Code, DejaqError, error_of
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1 import overseer_pb2 as overseer
from dejaq.sdk.seeds import Seeds
from dejaq.sdk.settings import ClientSettings

# An upload or download that is slower than this is given up.
BYTES_PER_SECOND_MIN = 1_000_000
# How often a body is uploaded again that was gone before its message came to refer to it.
TRIES = 3


@dataclass(frozen=True, slots=True)
class Terms:
    """What a topic says about bodies, and how many buckets it has."""

    buckets: int = 1
    max_body_bytes: int = limits.BODY_BYTES_MAX
    compression: Compression = Compression.NONE
    shares_bodies: bool = False
    inline_bytes_max: int = limits.BODY_BYTES_MAX

    @classmethod
    def of(cls, described: overseer.TopicResponse) -> Terms:
        """The terms in the description of a topic."""
        settings = described.topic.settings
        return cls(
            inline_bytes_max=described.inline_body_bytes_max or limits.BODY_BYTES_MAX,
            buckets=settings.buckets,
            max_body_bytes=settings.max_body_bytes,
            compression=Compression(settings.compression or Compression.NONE),
            shares_bodies=settings.share_bodies,
        )

    def inline(self, body: bytes) -> bytes | None:
        """A body as it is stored in its message; None where it is too large for that and goes in parts."""
        if len(body) > self.inline_bytes_max:
            if self.compression is Compression.NONE or len(body) > limits.DECOMPRESSED_BYTES_MAX:
                return None
            # What a part of it becomes tells whether the whole is worth the try.
            first = len(sealed(body[:PART_BYTES], self.compression))
            if first * len(body) > 2 * min(PART_BYTES, len(body)) * self.inline_bytes_max:
                return None
        stored = sealed(body, self.compression)
        return stored if len(stored) <= self.inline_bytes_max else None

    def check(self, body: bytes) -> None:
        """Raise BODY_TOO_LARGE before anything of the body is sent."""
        if len(body) > self.max_body_bytes:
            raise error_of(Code.BODY_TOO_LARGE, details=f"{len(body)} bytes, at most {self.max_body_bytes}")


class LargeBodies:
    """The large bodies that a client sends and reads."""

    def __init__(self, seeds: Seeds, settings: ClientSettings) -> None:
        self._seeds = seeds
        self._settings = settings

    async def upload(self, topic: str, bucket: int, body: bytes, terms: Terms) -> bytes:
        """Send a body, unless the broker has it and may say so; what a message has as its body to refer to it."""
        terms.check(body)
        # Off the loop: it takes long enough to be late for others.
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
        """A body part by part, at most 1 MiB each; an outage between two parts is ridden through.

        Raises BODY_MISSING when its message is gone, and BODY_UNREADABLE when it is not what was sent, which is known
        with the last part only.
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
        self, topic: str, terms: Terms, ids: Sequence[str], bodies: Sequence[bytes], *, attempt: int = 0
    ) -> tuple[list[bytes], bool]:
        """Bodies as they are stored, and whether some of them refer to large ones, which are uploaded first.

        One that stands several times is uploaded once. When a store of several parts answers BODY_MISSING to that, the
        next `attempt` uploads it for each message.
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
