"""Large bodies: uploads and downloads, of which the broker holds a part or two at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

from dejaq import limits
from dejaq.broker.calls.slots import Slot, Slots
from dejaq.broker.metrics import BODIES_FOUND, BODIES_RECLAIMED, DOWNLOADED, UPLOADED
from dejaq.broker.sessions.broker_context import BrokerContext
from dejaq.domain.bodies.large import Declared, Reference, reference_of
from dejaq.domain.context import CallContext
from dejaq.domain.ids import buckets_of, valid_id
from dejaq.domain.topic import Topic
from dejaq.errors import Code, DejaqError, InvalidArgument, Missing, error_of
from dejaq.protocol.v1 import carrier_pb2 as carrier

log = logging.getLogger(__name__)

RECLAIM_SECONDS = 60.0


class BodyCalls:
    """Answers `Carrier.Upload`, `FindBody` and `Download`, and removes what nobody came to refer to."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker
        clock = broker.clock
        self._uploads = Slots("upload", clock, total=limits.UPLOADS_MAX, each=limits.UPLOADS_PER_CLIENT_MAX)
        self._downloads = Slots("download", clock, total=limits.DOWNLOADS_MAX, each=limits.DOWNLOADS_PER_CLIENT_MAX)

    @property
    def under_way(self) -> int:
        """Uploads and downloads that are being served."""
        return len(self._uploads) + len(self._downloads)

    async def upload(self, context: CallContext, frames: AsyncIterator[carrier.UploadFrame]) -> carrier.BodyReference:
        """Take a body part by part; the next is read when the last is stored."""
        self._broker.doctor.admit("create")
        with self._uploads.take(context) as slot:
            head = await _next(frames)
            if head is None or head.WhichOneof("frame") != "head":
                raise InvalidArgument("an upload begins with its head")
            topic, declared = self._looked_at(head.head)
            reference = await self._broker.storage.bodies.upload(
                topic, head.head.bucket, declared, _parts_of(frames, slot), self._broker.clock.now_ms()
            )
        self._broker.doctor.confirm()
        self._broker.metrics.add(UPLOADED, declared.stored, topic.name)
        return carrier.BodyReference(reference=reference.pack())

    async def find(self, context: CallContext, head: carrier.UploadHead) -> carrier.BodyReference:
        """A body that is there already, where the topic shares bodies."""
        self._broker.doctor.admit("create")
        topic, declared = self._looked_at(head)
        if not topic.settings.share_bodies:
            return carrier.BodyReference()
        found = await self._broker.storage.bodies.find(topic, head.bucket, declared, self._broker.clock.now_ms())
        if found is None:
            return carrier.BodyReference()
        self._broker.metrics.add(BODIES_FOUND, declared.stored, topic.name)
        return carrier.BodyReference(reference=found.pack())

    def _looked_at(self, head: carrier.UploadHead) -> tuple[Topic, Declared]:
        topic = self._broker.catalog.live(head.topic)
        declared = Declared(size=head.size, stored=head.stored, digest=head.digest)
        declared.check(topic.settings.max_body_bytes)
        if head.bucket >= topic.settings.buckets:
            raise InvalidArgument(f"bucket {head.bucket} is not one of the topic's {topic.settings.buckets}")
        return topic, declared

    async def download(self, context: CallContext, request: carrier.DownloadRequest) -> AsyncIterator[carrier.BodyPart]:
        """Give a body part by part; the next is read when the last is sent."""
        topic = self._broker.catalog.live(request.topic)
        reference = reference_of(request.reference)
        if reference is None or not valid_id(request.id):
            raise InvalidArgument("a download names a message and the reference that is its body")
        if request.first_part >= reference.parts:
            raise InvalidArgument(f"part {request.first_part} is behind the last of {reference.parts}")
        with self._downloads.take(context, reference.stored) as slot:
            buckets = buckets_of(request.id, topic.settings.buckets)
            for part in range(request.first_part, reference.parts):
                data = await self._part(topic, buckets, reference, part)
                self._broker.metrics.add(DOWNLOADED, len(data), topic.name)
                yield carrier.BodyPart(data=data)
                slot.move()

    async def _part(self, topic: Topic, buckets: list[int], reference: Reference, part: int) -> bytes:
        """One part, from the first of the buckets that has it; from then on, that one is the only one."""
        bodies = self._broker.storage.bodies
        while len(buckets) > 1:
            try:
                data = await bodies.part(topic, buckets[0], reference, part)
            except Missing:
                del buckets[0]
            else:
                del buckets[1:]
                return data
        return await bodies.part(topic, buckets[0], reference, part)

    async def run(self) -> None:
        """Reclaim what nobody refers to, again and again, until cancelled."""
        while True:
            await self._broker.clock.sleep(RECLAIM_SECONDS)
            try:
                count = await self._broker.storage.bodies.reclaim(self._broker.clock.now_ms())
                self._broker.metrics.add(BODIES_RECLAIMED, count)
            except DejaqError as error:
                log.info("bodies that nobody refers to are removed later: %s", error)


async def _parts_of(frames: AsyncIterator[carrier.UploadFrame], slot: Slot) -> AsyncIterator[bytes]:
    while (frame := await _next(frames)) is not None:
        if frame.WhichOneof("frame") != "part":
            raise InvalidArgument("an upload has one head, and then parts")
        slot.move()
        yield frame.part


async def _next(frames: AsyncIterator[carrier.UploadFrame]) -> carrier.UploadFrame | None:
    try:
        async with asyncio.timeout(limits.PART_MS_MAX / 1_000):
            return await anext(frames, None)
    except TimeoutError:
        raise error_of(Code.UNAVAILABLE, "the upload stands still; begin it again") from None
