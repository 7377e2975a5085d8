"""The logs of the reference storage: lists of batches. Every other store must give the same answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from dejaq import limits
from dejaq.domain.context import CallContext
from dejaq.domain.topic import Topic
from dejaq.errors import Code, Refused, error_of
from dejaq.storage.log.base import (
    MEMBER_MS,
    MINUTE_MS,
    NAMES_PER_SESSION,
    Append,
    Appended,
    BucketOffsets,
    CommittedOffset,
    GroupSeat,
    GroupView,
    LogName,
    LogRetention,
    LogSlice,
    MinuteCount,
    OffsetCommit,
    RolledBack,
    StoredBatch,
    check_bucket,
    check_offset,
    unknown_name,
)
from dejaq.storage.log.prepared import NEVER_MS, PreparedState, PreparedTransaction, check_answer, check_of
from dejaq.storage.log.prepared_records import PreparedRecords
from dejaq.storage.memory.log_groups import GroupMembers
from dejaq.storage.memory.state import MemoryState
from dejaq.storage.transactions import LogAppendStep, LogStep, Verdict, first_refused


@dataclass(slots=True)
class _Bucket:
    """The batches of a bucket."""

    batches: list[StoredBatch] = field(default_factory=list)
    # When each batch may not be rolled back any more, and how long it may be at most, by its base.
    stable_at: dict[int, tuple[int, int]] = field(default_factory=dict)
    next: int = 0
    stable: int = 0
    last_ts: int = 0

    @property
    def start(self) -> int:
        return self.batches[0].base if self.batches else self.next

    def settle(self, now: int) -> int:
        """Move the last stable offset; it never moves back."""
        first = next((one.base for one in self.batches if one.end > self.stable and not one.aborted), None)
        if first is not None and self.stable_at[first][0] > now + self.stable_at[first][1]:
            # The clock was set back.
            self.stable_at = {base: (min(at, now + length), length) for base, (at, length) in self.stable_at.items()}
        for batch in self.batches:
            if batch.end > self.stable and (batch.aborted or self.stable_at[batch.base][0] <= now):
                self.stable = batch.end
            elif batch.end > self.stable:
                break
        return self.stable


@dataclass(slots=True)
class _Log:
    """The buckets, names and groups of a topic."""

    buckets: list[_Bucket]
    names: dict[LogName, tuple[int, StoredBatch]] = field(default_factory=dict)
    highest: dict[bytes, int] = field(default_factory=dict)
    groups: dict[str, dict[int, CommittedOffset]] = field(default_factory=dict)
    members: dict[str, GroupMembers] = field(default_factory=dict)


class MemoryLogs:
    """Implements `LogStorage` on the state of a memory store."""

    def __init__(self, state: MemoryState) -> None:
        self._state = state
        self._logs: dict[int, _Log] = {}
        self._prepared = PreparedRecords()

    def _log(self, topic: Topic) -> _Log:
        self._state.check_live(topic)
        found = self._logs.get(topic.number)
        if found is None:
            found = self._logs[topic.number] = _Log([_Bucket() for _ in range(topic.settings.buckets)])
        return found

    def drop(self, topic: Topic) -> None:
        """Forget everything of a topic; what is in doubt in it is aborted, since it holds parts of other logs too."""
        for record in self._prepared.in_doubt(topic.number):
            self._settle(replace(record, state=PreparedState.ABORTED), 0)
        self._logs.pop(topic.number, None)
        for key in [key for key in self._prepared.records if key[0] == topic.number]:
            del self._prepared.records[key]

    async def append(
        self, topic: Topic, batches: Sequence[Append], now: int, context: CallContext
    ) -> list[Appended | Refused]:
        """Append batches."""
        log = self._log(topic)
        return [_attempt(log, topic, batch, now) for batch in batches]

    async def read(
        self, topic: Topic, bucket: int, start: int, *, end: int | None, bytes_max: int, committed: bool, now: int
    ) -> LogSlice:
        """The batches from an offset on."""
        check_bucket(topic, bucket)
        held = self._log(topic).buckets[bucket]
        check_offset(topic, bucket, start, held.start, held.next)
        stop = held.settle(now) if committed else held.next
        stop = stop if end is None else min(stop, end)
        found: list[StoredBatch] = []
        size, at = 0, start
        for batch in held.batches:
            if batch.end <= start:
                continue
            if batch.base >= stop or (found and size + len(batch.records) > bytes_max):
                break
            at = batch.end
            if not (committed and batch.aborted):
                found.append(batch)
                size += len(batch.records)
        return LogSlice(tuple(found), at)

    async def offsets(self, topic: Topic, now: int) -> list[BucketOffsets]:
        """The offsets of every bucket."""
        return [
            BucketOffsets(held.start, held.settle(now), held.next, sum(len(batch.records) for batch in held.batches))
            for held in self._log(topic).buckets
        ]

    async def offset_for_time(self, topic: Topic, bucket: int, ts: int) -> int:
        """The first offset of a time."""
        check_bucket(topic, bucket)
        held = self._log(topic).buckets[bucket]
        return next((batch.base for batch in held.batches if batch.ts >= ts), held.next)

    async def minutes(self, topic: Topic, bucket: int, start: int, end: int) -> list[MinuteCount]:
        """The minutes of a range of times."""
        check_bucket(topic, bucket)
        found: dict[int, MinuteCount] = {}
        for batch in self._log(topic).buckets[bucket].batches:
            minute = batch.ts // MINUTE_MS
            if start // MINUTE_MS <= minute < -(-end // MINUTE_MS):
                one = found.get(minute) or MinuteCount(minute, batch.base, 0, 0)
                found[minute] = replace(one, count=one.count + batch.count, bytes=one.bytes + len(batch.records))
        return list(found.values())

    async def rollback(self, topic: Topic, name: LogName, now: int, context: CallContext) -> RolledBack:
        """Take out a batch."""
        log = self._log(topic)
        place = log.names.get(name)
        if place is None:
            raise unknown_name(topic, name)
        bucket, batch = place
        held = log.buckets[bucket]
        at = next((i for i, one in enumerate(held.batches) if one.base == batch.base), None)
        if at is not None and held.batches[at].aborted:
            return RolledBack(bucket, batch.base, batch.count)
        if at is None or held.settle(now) > batch.base:
            raise error_of(Code.TOO_LATE)
        held.batches[at] = replace(held.batches[at], aborted=True)
        return RolledBack(bucket, batch.base, batch.count)

    # Groups

    def _group(self, log: _Log, name: str) -> dict[int, CommittedOffset]:
        """What a group has; a new group is one of the log when something is written for it."""
        found = log.groups.get(name)
        if found is None:
            if len(log.groups) >= limits.LOG_GROUPS_MAX:
                raise error_of(Code.LIMIT_EXCEEDED, f"a log has at most {limits.LOG_GROUPS_MAX} groups; remove one")
            return {}
        return found

    async def claim(
        self, topic: Topic, group: str, buckets: Sequence[int], now: int, context: CallContext
    ) -> tuple[int, Mapping[int, int]]:
        """Claim buckets for a member."""
        for bucket in buckets:
            check_bucket(topic, bucket)
        log = self._log(topic)
        self._prepared.check_free(topic.number, group, buckets)
        offsets, number = self._group(log, group), self._state.next_version()
        log.groups[group] = offsets
        for bucket in buckets:
            offsets[bucket] = CommittedOffset(offsets[bucket].offset if bucket in offsets else -1, number, now)
        return number, {bucket: offsets[bucket].offset for bucket in buckets if offsets[bucket].offset >= 0}

    async def commit(
        self, topic: Topic, group: str, commits: Sequence[OffsetCommit], now: int, context: CallContext
    ) -> list[Code]:
        """Write what a group has read."""
        log = self._log(topic)
        codes = self._decide(log, topic, group, commits)
        allowed = [one for one, code in zip(commits, codes, strict=True) if code is Code.OK]
        if allowed:
            held = log.groups.setdefault(group, {})
            held.update({one.bucket: CommittedOffset(one.offset, one.claim, now) for one in allowed})
        return codes

    def _decide(self, log: _Log, topic: Topic, group: str, commits: Sequence[OffsetCommit]) -> list[Code]:
        """The outcome of each commit."""
        for one in commits:
            check_bucket(topic, one.bucket)
        self._prepared.check_free(topic.number, group, [one.bucket for one in commits])
        offsets = self._group(log, group)
        codes = []
        for one in commits:
            current = offsets.get(one.bucket)
            if one.claim != (current.claim if current is not None else 0):
                codes.append(Code.CLAIM_LOST)
            elif not 0 <= one.offset <= log.buckets[one.bucket].next:
                codes.append(Code.OFFSET_OUT_OF_RANGE)
            else:
                codes.append(Code.OK)
        return codes

    # Transactions

    def decide(self, step: LogStep, number: int, now: int) -> Verdict | None:
        """The refusal of a step of a transaction; None when it is allowed."""
        log = self._log(step.topic)
        if isinstance(step, LogAppendStep):
            code = step.refusal(now)
            return None if code is None else Verdict(code, number)
        return first_refused(self._decide(log, step.topic, step.group, step.commits), number)

    def apply(self, step: LogStep, now: int) -> None:
        """Do a step that is allowed."""
        log = self._log(step.topic)
        if isinstance(step, LogAppendStep):
            _append(log, step.topic, step.batch, now)
        else:
            held = log.groups.setdefault(step.group, {})
            held.update({one.bucket: CommittedOffset(one.offset, one.claim, now) for one in step.commits})

    async def reset(self, topic: Topic, group: str, offsets: Mapping[int, int], now: int, context: CallContext) -> None:
        """Set the offsets of a group."""
        log = self._log(topic)
        for bucket, offset in offsets.items():
            check_bucket(topic, bucket)
            check_offset(topic, bucket, offset, 0, log.buckets[bucket].next)
        self._prepared.check_free(topic.number, group, offsets)
        held, number = self._group(log, group), self._state.next_version()
        log.groups[group] = held
        for bucket, offset in offsets.items():
            held[bucket] = CommittedOffset(offset, number, now)

    async def groups(self, topic: Topic) -> dict[str, dict[int, CommittedOffset]]:
        """Every group."""
        return {name: dict(offsets) for name, offsets in self._log(topic).groups.items()}

    async def remove_group(self, topic: Topic, group: str, context: CallContext) -> bool:
        """Forget a group."""
        log = self._log(topic)
        self._prepared.check_free(topic.number, group, range(len(log.buckets)))
        return log.groups.pop(group, None) is not None

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
        """Store steps under a name."""
        check = check or check_of(steps)
        self._log(topic)
        for old in self._prepared.forgettable(topic.number, now):
            del self._prepared.records[topic.number, old]
        if self._prepared.is_repeat(topic, name, check):
            return Verdict(Code.ALREADY_EXISTS)
        for number, step in enumerate(steps):
            refusal = self.decide(step, number, now)
            if refusal is not None:
                return refusal
        places = [
            _append(self._log(step.topic), step.topic, replace(step.batch, prepared=True), now)
            for step in steps
            if isinstance(step, LogAppendStep)
        ]
        record = PreparedTransaction.of(name, steps, places, deadline_ms=deadline, now=now, check=check)
        self._prepared.records[topic.number, name] = record
        return Verdict()

    async def resolve(
        self, topic: Topic, name: str, *, commit: bool, now: int, context: CallContext
    ) -> PreparedTransaction:
        """Commit or abort a prepared transaction."""
        self._log(topic)
        known = self._prepared.found(topic, name)
        record = known.resolved(commit=commit, now=now)
        if record is None:
            return known
        self._prepared.records[topic.number, name] = record
        self._settle(record, now)
        check_answer(record, commit=commit)
        return record

    def _settle(self, record: PreparedTransaction, now: int) -> None:
        """Let readers pass the batches of a transaction that is resolved, and commit its offsets, or not."""
        committed = record.state is PreparedState.COMMITTED
        for one in record.batches:
            log = self._logs.get(one.topic)
            if log is not None:
                held = log.buckets[one.bucket]
                held.stable_at[one.base] = 0, 0
                at = next(i for i, batch in enumerate(held.batches) if batch.base == one.base)
                held.batches[at] = replace(held.batches[at], aborted=not committed)
        for offset in record.commits if committed else ():
            log = self._logs.get(offset.topic)
            if log is not None:
                fresh = CommittedOffset(offset.offset, offset.claim, now)
                log.groups.setdefault(offset.group, {})[offset.bucket] = fresh

    async def in_doubt(self, topic: Topic) -> list[PreparedTransaction]:
        """The transactions of a log that are not resolved."""
        self._log(topic)
        return self._prepared.in_doubt(topic.number)

    # Members at all brokers

    async def meet(
        self, topic: Topic, group: str, broker: str, members: Sequence[str], joined: Sequence[str], now: int
    ) -> GroupView:
        """Renew the members of a broker."""
        log = self._log(topic)
        held = log.members.setdefault(group, GroupMembers())
        seats = held.meet(broker, members, joined, now)
        if not seats:
            del log.members[group]
        claims = {bucket: one.claim for bucket, one in log.groups.get(group, {}).items()}
        return GroupView(seats, dict(held.holders), claims)

    async def hold(self, topic: Topic, group: str, broker: str, member: str, buckets: Sequence[int]) -> set[int]:
        """Give free buckets to a member."""
        held = self._log(topic).members.get(group)
        return set() if held is None else held.hold(broker, member, buckets)

    async def let_go(self, topic: Topic, group: str, member: str, buckets: Sequence[int]) -> None:
        """Free buckets that a member has."""
        held = self._log(topic).members.get(group)
        if held is not None:
            held.let_go(member, buckets)

    async def members(self, topic: Topic, now: int) -> dict[str, list[GroupSeat]]:
        """The members of every group."""
        return {
            group: [GroupSeat(name, broker) for name, (broker, seen) in held.seats.items() if seen >= now - MEMBER_MS]
            for group, held in self._log(topic).members.items()
        }

    async def retain(self, topic: Topic, retention: LogRetention, now: int, context: CallContext) -> int:
        """Remove the oldest batches."""
        log, removed = self._log(topic), 0
        for bucket, held in enumerate(log.buckets):
            read = _read_by_all(log.groups, bucket) if retention.trim_read else 0
            kept = sum(len(batch.records) for batch in held.batches)
            held.settle(now)
            while held.batches:
                first = held.batches[0]
                old = 0 < retention.keep_ms < now - first.ts
                much = 0 < retention.keep_bytes < kept
                if held.stable < first.end or not (old or much or first.end <= read):
                    break
                held.batches.pop(0)
                held.stable_at.pop(first.base)
                kept -= len(first.records)
                removed += first.count
        return removed


def _read_by_all(groups: Mapping[str, Mapping[int, CommittedOffset]], bucket: int) -> int:
    """The offset before which every group has read a bucket; 0 without groups."""
    return max(min((o[bucket].offset if bucket in o else 0 for o in groups.values()), default=0), 0)


def _attempt(log: _Log, topic: Topic, batch: Append, now: int) -> Appended | Refused:
    try:
        return _append(log, topic, batch, now)
    except Refused as refusal:
        return refusal


def _append(log: _Log, topic: Topic, batch: Append, now: int) -> Appended:
    check_bucket(topic, batch.bucket)
    name = batch.name
    if name is not None:
        place = log.names.get(name)
        if place is not None and (place[0], place[1].count) == (batch.bucket, batch.count):
            return Appended(place[1].base, place[1].ts, repeated=True)
        if place is not None or name.sequence <= log.highest.get(name.session, 0) - NAMES_PER_SESSION:
            raise error_of(Code.BATCH_NAME_TAKEN)
    if batch.until is not None and now > batch.until:
        raise error_of(Code.EXPIRED)
    held = log.buckets[batch.bucket]
    held.last_ts = max(held.last_ts, now)
    made = StoredBatch(held.next, batch.count, held.last_ts, batch.records)
    held.batches.append(made)
    held.stable_at[made.base] = (NEVER_MS, NEVER_MS) if batch.prepared else (now + batch.rollback_ms, batch.rollback_ms)
    held.next = made.end
    if name is not None:
        log.names[name] = batch.bucket, replace(made, records=b"")
        log.highest[name.session] = max(log.highest.get(name.session, 0), name.sequence)
        log.names.pop(LogName(name.session, name.sequence - NAMES_PER_SESSION), None)
    return Appended(made.base, made.ts)
