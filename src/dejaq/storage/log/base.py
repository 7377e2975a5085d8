"""The storage contract for log topics: batches are appended and get offsets; readers read ranges and commit offsets.

A topic of the kind `log` has buckets. Each message of a bucket has an offset; the offsets of a bucket are dense, and
are assigned in the commit that appends. A batch is one opaque block of bytes, which readers get as it was appended.
The timestamp of a batch is the broker's, and never decreases in a bucket. Readers see only what is durable.

A batch that was appended with a *rollback window* can be rolled back by its name until the window has passed. A
*committed* reader stops before such a batch, and skips batches that were rolled back. The offsets of those stay used.

A group has, for each bucket, the offset that it reads next, and the number of the last *claim*. A member that begins to
read a bucket claims it; a commit under an older claim is refused, so a member that was replaced changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from dejaq.domain.context import CallContext
from dejaq.domain.topic import Topic
from dejaq.errors import Code, DejaqError, Refused, error_of

if TYPE_CHECKING:
    from dejaq.storage.log.prepared import PreparedTransaction
    from dejaq.storage.transactions import LogStep, Verdict

# How many of the latest names of a session are remembered: more than a client has batches without an answer.
NAMES_PER_SESSION = 1_024
MINUTE_MS = 60_000
# After this time without a renewal, the members of a broker are gone.
MEMBER_MS = 6_000


@dataclass(frozen=True, slots=True)
class LogName:
    """Names a batch: a repeat under the same name appends nothing. `session` has ten bytes."""

    session: bytes
    sequence: int


@dataclass(frozen=True, slots=True)
class Append:
    """A batch to append. `until` is the last time, in UTC ms, at which it may be appended."""

    bucket: int
    records: bytes
    count: int
    name: LogName | None = None
    until: int | None = None
    rollback_ms: int = 0
    # It belongs to a prepared transaction: committed readers stop before it until that is resolved.
    prepared: bool = False


@dataclass(frozen=True, slots=True)
class Appended:
    """Where a batch is; `repeated` when an earlier call had appended it."""

    base: int
    ts: int
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch of a log: the messages with offsets from `base` on."""

    base: int
    count: int
    ts: int
    records: bytes
    # It was rolled back; only uncommitted readers get it.
    aborted: bool = False

    @property
    def end(self) -> int:
        """The offset behind its last message."""
        return self.base + self.count


@dataclass(frozen=True, slots=True)
class LogSlice:
    """Batches in the order of their offsets, and the offset at which to read on.

    The first batch may begin before the offset that was asked for, and the last may end behind the end.
    """

    batches: tuple[StoredBatch, ...]
    next: int


@dataclass(frozen=True, slots=True)
class BucketOffsets:
    """The offsets of a bucket: its first, the last stable one (committed readers stop there), and the next one."""

    start: int
    stable: int
    next: int
    # Of all batches that are kept.
    bytes: int

    @property
    def count(self) -> int:
        """How many messages are kept; those of batches that were rolled back count too."""
        return self.next - self.start


@dataclass(frozen=True, slots=True)
class RolledBack:
    """The messages that a rollback has taken out."""

    bucket: int
    base: int
    count: int


@dataclass(frozen=True, slots=True)
class OffsetCommit:
    """A group has everything of a bucket before `offset`. `claim` is that of the member; 0 for a bucket without one."""

    bucket: int
    offset: int
    claim: int = 0


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """What a group reads next of a bucket, under which claim, and when that was written."""

    offset: int
    claim: int
    at: int


@dataclass(frozen=True, slots=True)
class LogRetention:
    """What a log keeps; 0 for no limit. With `trim_read`, what every group has read is removed, if there is a group."""

    keep_ms: int = 0
    keep_bytes: int = 0
    trim_read: bool = False


@dataclass(frozen=True, slots=True)
class MinuteCount:
    """The batches of one minute of a bucket: the first offset, the messages and the bytes that are kept."""

    minute: int
    first: int
    count: int
    bytes: int


class LogStorage(Protocol):
    """The logs of a store. Refusals are raised; TOPIC_NOT_FOUND when the store does not have the topic."""

    async def append(
        self, topic: Topic, batches: Sequence[Append], now: int, context: CallContext
    ) -> list[Appended | Refused]:
        """Append batches, each by itself, in one commit; returns when they are as durable as the topic requires.

        An answer is the place of the batch or its refusal: EXPIRED after `until`, BATCH_NAME_TAKEN when another batch
        has the name, or when the session has used NAMES_PER_SESSION later ones, INVALID_ARGUMENT for a bucket that the
        topic does not have. The batches of a bucket are in the order of the call.
        """

    async def read(
        self, topic: Topic, bucket: int, start: int, *, end: int | None, bytes_max: int, committed: bool, now: int
    ) -> LogSlice:
        """The batches from offset `start` on, before `end`: about `bytes_max` of them, at least one where there is one.

        Raises OFFSET_OUT_OF_RANGE when `start` was removed or is behind the end of the log.
        """

    async def offsets(self, topic: Topic, now: int) -> list[BucketOffsets]:
        """The offsets of every bucket."""

    async def offset_for_time(self, topic: Topic, bucket: int, ts: int) -> int:
        """The first offset whose timestamp is `ts` or later; the next offset where there is none."""

    async def minutes(self, topic: Topic, bucket: int, start: int, end: int) -> list[MinuteCount]:
        """The minutes with batches whose timestamps are in the minutes of [start, end), in order, exactly."""

    async def rollback(self, topic: Topic, name: LogName, now: int, context: CallContext) -> RolledBack:
        """Take out a batch; a repeat answers the same. Raises TOO_LATE after its window, NOT_FOUND for no such name."""

    async def claim(
        self, topic: Topic, group: str, buckets: Sequence[int], now: int, context: CallContext
    ) -> tuple[int, Mapping[int, int]]:
        """A new claim for the buckets, greater than every one before, and the committed offset of each that has one."""

    async def commit(
        self, topic: Topic, group: str, commits: Sequence[OffsetCommit], now: int, context: CallContext
    ) -> list[Code]:
        """Write what a group has read; OK, CLAIM_LOST, or OFFSET_OUT_OF_RANGE behind the end, for each commit.

        An offset may be lower than before. The commits that are OK are in one commit of the store.
        """

    async def reset(self, topic: Topic, group: str, offsets: Mapping[int, int], now: int, context: CallContext) -> None:
        """Set the offsets of a group, and end the claims of these buckets. Makes the group if necessary."""

    async def groups(self, topic: Topic) -> dict[str, dict[int, CommittedOffset]]:
        """Every group with its offset in each bucket. A bucket that is only claimed has the offset -1."""

    async def remove_group(self, topic: Topic, group: str, context: CallContext) -> bool:
        """Forget a group; whether there was one."""

    async def retain(self, topic: Topic, retention: LogRetention, now: int, context: CallContext) -> int:
        """Remove the oldest batches that need not be kept, for a short time; how many messages that were.

        A batch is removed as a whole. The next offset of a bucket never changes.
        """

    # Transactions with two phases; `dejaq.storage.log.prepared` has the rules.

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
        """Store steps under a name, which belongs to the log `topic`; ALREADY_EXISTS for a repeat.

        A repeat has the same `check`, which is computed from the steps where it is 0. Raises BATCH_NAME_TAKEN for
        another transaction under the name, and LIMIT_EXCEEDED.
        """

    async def resolve(
        self, topic: Topic, name: str, *, commit: bool, now: int, context: CallContext
    ) -> PreparedTransaction:
        """Commit or abort a prepared transaction; a repeat does nothing.

        Raises NOT_FOUND for a name that is not known, and TOO_LATE when it was resolved the other way, or a commit
        comes after the deadline.
        """

    async def in_doubt(self, topic: Topic) -> list[PreparedTransaction]:
        """The transactions of a log that are not resolved, in the order of their names."""


@dataclass(frozen=True, slots=True)
class GroupSeat:
    """A member of a group, and the broker to which it is connected."""

    member: str
    broker: str


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group as the store knows it: its members in the order in which they came, and who has which bucket."""

    seats: tuple[GroupSeat, ...]
    # The member that has a bucket. A bucket that is not here is free.
    holders: Mapping[int, str]
    # The last claim of each bucket.
    claims: Mapping[int, int]


@runtime_checkable
class SharesGroups(Protocol):
    """The logs of a store that several brokers share: it knows the members of groups at all of them.

    A broker renews its members by `meet`. The members of a broker that has not done so for MEMBER_MS are removed, and
    their buckets are free.
    """

    async def meet(
        self, topic: Topic, group: str, broker: str, members: Sequence[str], joined: Sequence[str], now: int
    ) -> GroupView:
        """Renew the members that a broker has, remove its others, add or take over those that `joined`; the group.

        A member that joined has no bucket. One that was removed meanwhile stays removed until it joins again.
        """

    async def hold(self, topic: Topic, group: str, broker: str, member: str, buckets: Sequence[int]) -> set[int]:
        """Give free buckets to a member of a broker; those that it got."""

    async def let_go(self, topic: Topic, group: str, member: str, buckets: Sequence[int]) -> None:
        """Free buckets that a member has."""

    async def members(self, topic: Topic, now: int) -> dict[str, list[GroupSeat]]:
        """The members of every group, at all brokers."""


@runtime_checkable
class KeepsLogs(Protocol):
    """A storage that has logs."""

    @property
    def logs(self) -> LogStorage:
        """Its logs; available while it is open."""


def check_bucket(topic: Topic, bucket: int) -> None:
    """Raise INVALID_ARGUMENT for a bucket that a topic does not have."""
    if not 0 <= bucket < topic.settings.buckets:
        raise error_of(
            Code.INVALID_ARGUMENT,
            f"topic {topic.name!r} has the buckets 0 to {topic.settings.buckets - 1}, not {bucket}",
        )


def unknown_name(topic: Topic, name: LogName) -> DejaqError:
    """The error for a name that no batch has."""
    return error_of(Code.NOT_FOUND, f"no batch of {topic.name!r} has the name {name.session.hex()}/{name.sequence}")


def check_offset(topic: Topic, bucket: int, offset: int, first: int, next_offset: int) -> None:
    """Raise OFFSET_OUT_OF_RANGE for an offset that cannot be read from."""
    if not first <= offset <= next_offset:
        why = "was removed" if offset < first else "is behind the end"
        raise error_of(
            Code.OFFSET_OUT_OF_RANGE,
            f"offset {offset} of bucket {bucket} of {topic.name!r} {why}; it has {first} to {next_offset}",
        )
