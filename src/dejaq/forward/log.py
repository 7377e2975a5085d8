"""Logs as source and sink.

A message in a log keeps its key. Its id, time and priority in the queue from which it came are headers.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from hashlib import blake2b

from dejaq import limits
from dejaq.domain.message import check_headers
from dejaq.errors import MEANINGS, Code, Conflict, Refused
from dejaq.forward.base import FORWARDED_ID, Parcel, headers_with_origin, priority_of, with_key, without_origin
from dejaq.sdk.client import Client
from dejaq.sdk.log.group import LogGroup
from dejaq.sdk.log.log import Log
from dejaq.sdk.log.messages import LogMessage, bucket_of_key

# How far back in a bucket the sink looks for messages that an earlier forwarder has appended.
LOOK_BACK = 100_000
_LOOK_STEP = 2_000
_BATCH_BYTES = limits.BATCH_BYTES_MAX // 4


class LogSource:
    """A member of a group of a log: the group's offsets say what was moved."""

    def __init__(self, client: Client, topic: str, *, name: str, group: str) -> None:
        self.topic = topic
        self._log = client.log(topic)
        self._name, self._group = name, group
        self._mark = f"log:{zlib.crc32(topic.encode()):08x}"
        self._member: LogGroup | None = None

    @property
    def member(self) -> LogGroup:
        """The member of the group; available while this is open."""
        assert self._member is not None, "it is read before it is opened"
        return self._member

    async def open(self) -> None:
        """Join the group; it begins with the oldest message."""
        member = self._log.group(self._group, name=self._name)
        await member.open()
        self._member = member

    async def read(self, limit: int) -> Sequence[Parcel]:
        """The next messages of the buckets that this member has."""
        return [self._parcel(message) for batch in await self.member.getmany(limit) for message in batch]

    def _parcel(self, message: LogMessage) -> Parcel:
        headers = without_origin(message.headers)
        lane = f"{self._mark}:{message.bucket}"
        return Parcel(
            id=f"{lane}:{message.offset}",
            body=message.body,
            ts=message.ts_ms,
            priority=priority_of(headers),
            headers=headers,
            key=message.key,
            lane=lane,
            number=message.offset,
            token=(message.bucket, message.offset),
        )

    async def ack(self, parcels: Sequence[Parcel]) -> None:
        """Commit the offsets. A bucket that another member has by now is read again there."""
        held, ends = self.member.buckets, self.ends(parcels)
        try:
            await self.member.commit({bucket: end for bucket, end in ends.items() if bucket in held})
        except Conflict as error:
            if error.code is not Code.CLAIM_LOST:
                raise

    def ends(self, parcels: Sequence[Parcel]) -> dict[int, int]:
        """The next offset of each bucket behind these messages."""
        ends: dict[int, int] = {}
        for parcel in parcels:
            bucket, offset = parcel.token
            ends[bucket] = max(ends.get(bucket, 0), offset + 1)
        return ends

    async def reject(self, parcel: Parcel, reason: str) -> None:
        """It remains in the log; the group continues behind it."""
        await self.ack([parcel])

    async def close(self) -> None:
        """Leave the group."""
        if self._member is not None:
            await self._member.close()
        await self._log.close()


class LogSink:
    """Appends to a log, each message once.

    The messages of one lane that go into one bucket are a batch whose name is made from the lane, the bucket and the
    first number. A repeat is recognised by this name. If its length differs, the sink reads which messages it has.
    """

    def __init__(self, client: Client, topic: str) -> None:
        self._client, self._topic = client, topic
        self.log: Log = client.log(topic)
        self._buckets, self._body_bytes_max = 1, limits.BODY_BYTES_MAX
        # Ids that an earlier forwarder has appended and that this one may read again, of each lane.
        self._known: dict[str, set[str]] = {}

    async def open(self) -> None:
        """Find out what the log accepts."""
        settings = (await self._client.describe_topic(self._topic)).settings
        self._buckets, self._body_bytes_max = settings.buckets, settings.max_body_bytes
        await self.log.open()

    async def write(self, parcels: Sequence[Parcel]) -> Mapping[int, str]:
        """Append them; each bucket has the messages of a key, or else of a lane, in their order."""
        refused: dict[int, str] = {}
        batches: defaultdict[tuple[str, int], list[Parcel]] = defaultdict(list)
        for place, parcel in enumerate(map(with_key, parcels)):
            code = self._check(parcel)
            if code is not Code.OK:
                refused[place] = MEANINGS[code]
            elif parcel.id not in self._known.get(parcel.lane, ()):
                batches[parcel.lane, self.bucket_of(parcel)].append(parcel)
        for (lane, bucket), chosen in batches.items():
            await self._append_all(lane, bucket, chosen)
        # An earlier forwarder wrote one of its batches more than it acknowledged, so what follows is new.
        for lane in {parcel.lane for parcel in parcels} & self._known.keys():
            if not self._known[lane] & {parcel.id for parcel in parcels}:
                del self._known[lane]
        return refused

    def bucket_of(self, parcel: Parcel) -> int:
        """The bucket of a message: that of its key, or else of its lane."""
        return bucket_of_key(parcel.key or (parcel.lane or parcel.id).encode(), self._buckets)

    def _check(self, parcel: Parcel) -> Code:
        if len(parcel.body) > self._body_bytes_max:
            return Code.BODY_TOO_LARGE
        return check_headers(headers_with_origin(parcel))

    async def _append_all(self, lane: str, bucket: int, parcels: list[Parcel]) -> None:
        while parcels:
            count, size = 0, 0
            while count < len(parcels) and (not count or size + len(parcels[count].body) <= _BATCH_BYTES):
                size += len(parcels[count].body) + len(parcels[count].key) + limits.HEADERS_BYTES_MAX // 8
                count += 1
            try:
                await self._append(lane, bucket, parcels[:count], name_of(lane, bucket, parcels[0]))
            except Refused as error:
                if error.code is not Code.BATCH_NAME_TAKEN:
                    raise
                there = await self._appended_from(bucket, parcels[0])
                if there:
                    self._known.setdefault(lane, set()).update(there)
                    parcels = [parcel for parcel in parcels if parcel.id not in there]
                    continue
                # The source was set back by more than the broker remembers: these are to be appended again.
                await self._append(lane, bucket, parcels[:count], "")
            parcels = parcels[count:]

    async def _append(self, lane: str, bucket: int, parcels: Sequence[Parcel], name: str) -> None:
        bodies, keys = [parcel.body for parcel in parcels], [parcel.key for parcel in parcels]
        headers = [headers_with_origin(parcel) for parcel in parcels]
        if not any(keys):
            keys = []
        if name:
            await self.log.append_named(bodies, bucket=bucket, name=name, keys=keys, headers=headers)
        else:
            await self.log.append_batch(bodies, bucket=bucket, keys=keys or None, headers=headers)

    async def _appended_from(self, bucket: int, first: Parcel) -> set[str]:
        """The ids of the batch that begins with this message, from the end of the bucket back."""
        end = (await self.log.offsets())[bucket].next
        start = (await self.log.offsets())[bucket].start
        lowest = max(start, end - LOOK_BACK)
        while end > lowest:
            begin = max(end - _LOOK_STEP, lowest)
            async for batch in self.log.read(start={bucket: begin}, end={bucket: end}, uncommitted=True):
                for row, message in enumerate(batch):
                    if message.headers.get(FORWARDED_ID) == first.id:
                        whole = await self._batch_at(bucket, batch.base + row)
                        return {one.headers.get(FORWARDED_ID, "") for one in whole}
            end = begin
        return set()

    async def _batch_at(self, bucket: int, offset: int) -> list[LogMessage]:
        """The messages of the stored batch that begins at an offset."""
        async for batch in self.log.read(start={bucket: offset}, uncommitted=True, buckets=[bucket]):
            return list(batch)
        return []

    async def close(self) -> None:
        """Disconnect."""
        await self.log.close()


def name_of(lane: str, bucket: int, first: Parcel) -> str:
    """The name of a batch: the same for every forwarder that reads the same place of the same lane."""
    if not lane:
        return f"{_hash(f'{bucket}/{first.id}')}/0"
    return f"{_hash(f'{lane}/{bucket}/{first.number >> 32}')}/{first.number & 0xFFFF_FFFF}"


def _hash(text: str) -> str:
    return blake2b(text.encode(), digest_size=10).hexdigest()
