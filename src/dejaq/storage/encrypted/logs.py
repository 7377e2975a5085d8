"""Logs of encrypted topics: each batch is sealed as a whole, with the bodies, keys and headers of its messages.

The topic, the bucket and the number of messages are authenticated. A batch that cannot be opened is read as so many
empty messages with the header `dejaq-unreadable-headers`, so readers continue behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from dejaq.domain.bodies.packing import UNREADABLE
from dejaq.domain.context import CallContext
from dejaq.domain.headers import encode_headers
from dejaq.domain.topic import Topic
from dejaq.errors import Code, Refused
from dejaq.protocol.v1 import log_pb2
from dejaq.storage.encrypted.header_cipher import UNREADABLE_NAMES
from dejaq.storage.encrypted.keyring import Keyring
from dejaq.storage.log.base import (
    Append,
    Appended,
    BucketOffsets,
    CommittedOffset,
    GroupSeat,
    GroupView,
    LogName,
    LogRetention,
    LogSlice,
    LogStorage,
    MinuteCount,
    OffsetCommit,
    RolledBack,
    SharesGroups,
)
from dejaq.storage.log.prepared import PreparedTransaction, check_of
from dejaq.storage.transactions import LogAppendStep, LogStep, Verdict


class EncryptedLogs:
    """Implements `storage.log.base.LogStorage` on the logs of another storage."""

    def __init__(self, inner: LogStorage, keyring: Keyring, encrypts: Callable[[Topic], bool]) -> None:
        self._inner = inner
        self._keyring = keyring
        self._encrypts = encrypts

    async def append(
        self, topic: Topic, batches: Sequence[Append], now: int, context: CallContext
    ) -> list[Appended | Refused]:
        """Append sealed batches."""
        if self._encrypts(topic):
            sealer = (await self._keyring.ciphers_of(topic)).bodies
            names = [_name(topic, one.bucket, one.count) for one in batches]
            sealed = sealer.seal(names, [one.records for one in batches], large=False)
            batches = [replace(one, records=block) for one, block in zip(batches, sealed, strict=True)]
        return await self._inner.append(topic, batches, now, context)

    async def read(
        self, topic: Topic, bucket: int, start: int, *, end: int | None, bytes_max: int, committed: bool, now: int
    ) -> LogSlice:
        """The batches, opened."""
        found = await self._inner.read(topic, bucket, start, end=end, bytes_max=bytes_max, committed=committed, now=now)
        if not found.batches or not self._encrypts(topic):
            return found
        names = [_name(topic, bucket, one.count) for one in found.batches]
        blocks = await self._keyring.opened_blocks(topic, names, [one.records for one in found.batches])
        return replace(
            found,
            batches=tuple(
                replace(one, records=_unreadable(one.count) if block == UNREADABLE else block)
                for one, block in zip(found.batches, blocks, strict=True)
            ),
        )

    async def offsets(self, topic: Topic, now: int) -> list[BucketOffsets]:
        """The answer of the inner logs; the bytes are those of sealed batches."""
        return await self._inner.offsets(topic, now)

    async def offset_for_time(self, topic: Topic, bucket: int, ts: int) -> int:
        """The answer of the inner logs."""
        return await self._inner.offset_for_time(topic, bucket, ts)

    async def minutes(self, topic: Topic, bucket: int, start: int, end: int) -> list[MinuteCount]:
        """The answer of the inner logs."""
        return await self._inner.minutes(topic, bucket, start, end)

    async def rollback(self, topic: Topic, name: LogName, now: int, context: CallContext) -> RolledBack:
        """Roll back in the inner logs."""
        return await self._inner.rollback(topic, name, now, context)

    async def claim(
        self, topic: Topic, group: str, buckets: Sequence[int], now: int, context: CallContext
    ) -> tuple[int, Mapping[int, int]]:
        """Claim in the inner logs."""
        return await self._inner.claim(topic, group, buckets, now, context)

    async def commit(
        self, topic: Topic, group: str, commits: Sequence[OffsetCommit], now: int, context: CallContext
    ) -> list[Code]:
        """Commit in the inner logs."""
        return await self._inner.commit(topic, group, commits, now, context)

    async def reset(self, topic: Topic, group: str, offsets: Mapping[int, int], now: int, context: CallContext) -> None:
        """Reset in the inner logs."""
        await self._inner.reset(topic, group, offsets, now, context)

    async def groups(self, topic: Topic) -> dict[str, dict[int, CommittedOffset]]:
        """The groups of the inner logs."""
        return await self._inner.groups(topic)

    async def remove_group(self, topic: Topic, group: str, context: CallContext) -> bool:
        """Remove a group of the inner logs."""
        return await self._inner.remove_group(topic, group, context)

    async def retain(self, topic: Topic, retention: LogRetention, now: int, context: CallContext) -> int:
        """Remove from the inner logs."""
        return await self._inner.retain(topic, retention, now, context)

    # Transactions

    async def sealed_steps(self, steps: Sequence[LogStep]) -> list[LogStep]:
        """The steps of a transaction with sealed batches."""
        return [await self._sealed(step) for step in steps]

    async def _sealed(self, step: LogStep) -> LogStep:
        if not isinstance(step, LogAppendStep) or not self._encrypts(step.topic):
            return step
        sealer, batch = (await self._keyring.ciphers_of(step.topic)).bodies, step.batch
        (block,) = sealer.seal([_name(step.topic, batch.bucket, batch.count)], [batch.records], large=False)
        return replace(step, batch=replace(batch, records=block))

    async def prepare(
        self,
        topic: Topic,
        name: str,
        steps: Sequence[LogStep],
        deadline: int,
        now: int,
        context: CallContext,
        check: int = 0,
    ) -> Verdict:
        """Prepare sealed batches. The check value is that of the steps as they came, under a key."""
        sealed = await self.sealed_steps(steps)
        check = check or check_of(steps)
        sealing = [step.topic for step in steps if self._encrypts(step.topic)]
        if sealing:
            check = (await self._keyring.ciphers_of(sealing[0])).large.check_value(check)
        return await self._inner.prepare(topic, name, sealed, deadline, now, context, check)

    async def resolve(
        self, topic: Topic, name: str, *, commit: bool, now: int, context: CallContext
    ) -> PreparedTransaction:
        """Resolve in the inner logs."""
        return await self._inner.resolve(topic, name, commit=commit, now=now, context=context)

    async def in_doubt(self, topic: Topic) -> list[PreparedTransaction]:
        """The transactions of the inner logs."""
        return await self._inner.in_doubt(topic)


class SharedEncryptedLogs(EncryptedLogs):
    """The same for logs that know the members of groups at several brokers."""

    def __init__(
        self, inner: LogStorage, shares: SharesGroups, keyring: Keyring, encrypts: Callable[[Topic], bool]
    ) -> None:
        super().__init__(inner, keyring, encrypts)
        self._shares = shares

    async def meet(
        self, topic: Topic, group: str, broker: str, members: Sequence[str], joined: Sequence[str], now: int
    ) -> GroupView:
        """Renew members in the inner logs."""
        return await self._shares.meet(topic, group, broker, members, joined, now)

    async def hold(self, topic: Topic, group: str, broker: str, member: str, buckets: Sequence[int]) -> set[int]:
        """Give buckets in the inner logs."""
        return await self._shares.hold(topic, group, broker, member, buckets)

    async def let_go(self, topic: Topic, group: str, member: str, buckets: Sequence[int]) -> None:
        """Free buckets in the inner logs."""
        await self._shares.let_go(topic, group, member, buckets)

    async def members(self, topic: Topic, now: int) -> dict[str, list[GroupSeat]]:
        """The members that the inner logs know."""
        return await self._shares.members(topic, now)


def encrypted_logs(inner: LogStorage, keyring: Keyring, encrypts: Callable[[Topic], bool]) -> EncryptedLogs:
    """The logs around others."""
    if isinstance(inner, SharesGroups):
        return SharedEncryptedLogs(inner, inner, keyring, encrypts)
    return EncryptedLogs(inner, keyring, encrypts)


def _name(topic: Topic, bucket: int, count: int) -> str:
    return f"log {topic.number} {bucket} {count}"


def _unreadable(count: int) -> bytes:
    headers = encode_headers({UNREADABLE_NAMES: "*"})
    return bytes(log_pb2.LogRecords(bodies=[b""] * count, headers=[headers] * count).SerializeToString())
