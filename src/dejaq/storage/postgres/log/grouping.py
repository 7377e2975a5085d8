"""Groups: commits, claims and resets, each in a transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dejaq import limits
from dejaq.domain.topic import Topic
from dejaq.errors import Code, error_of
from dejaq.storage.log.base import CommittedOffset, OffsetCommit
from dejaq.storage.log.prepared import held_by
from dejaq.storage.postgres.connection.database import PostgresLink
from dejaq.storage.postgres.connection.failures import Overtaken
from dejaq.storage.postgres.log.appending import missing_log
from dejaq.storage.postgres.log.reading import Bounds
from dejaq.storage.postgres.operations.change import bucket_at, places_of


async def ends_of(link: PostgresLink, topic: Topic, buckets: Sequence[int]) -> dict[int, int]:
    """The next offset of buckets; raises TOPIC_NOT_FOUND."""
    rows = await link.fetch("log_bounds", topic.number, places_of(topic, buckets))
    if not rows or rows[0]["state"] == "deleting":
        raise missing_log(topic)
    found = dict.fromkeys(buckets, Bounds().next)
    found.update({bucket_at(row["place"]): row["next"] for row in rows if row["place"] is not None})
    return found


async def _lock(link: PostgresLink, topic: Topic, group: str, buckets: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Lock what a group has of buckets, as (offset, claim); raises LIMIT_EXCEEDED for a group too many."""
    rows = await link.fetch("lock_log_offsets", topic.number, group, sorted(set(buckets)))
    if not rows and await link.value("log_group_exists", topic.number, group) is None:
        await link.execute("lock_log_groups", topic.number)
        if await link.value("count_log_groups", topic.number) >= limits.LOG_GROUPS_MAX:
            raise error_of(Code.LIMIT_EXCEEDED, f"a log has at most {limits.LOG_GROUPS_MAX} groups; remove one")
    for row in rows:
        if row["held_by"] is not None:
            raise held_by(row["held_by"])
    return {row["bucket"]: (row["next"], row["claim"]) for row in rows}


async def check_free(link: PostgresLink, topic: Topic, group: str) -> None:
    """Lock everything of a group; raises UNAVAILABLE when a transaction in doubt commits a bucket for it."""
    for row in await link.fetch("lock_log_offsets", topic.number, group, list(range(topic.settings.buckets))):
        if row["held_by"] is not None:
            raise held_by(row["held_by"])


async def _put(
    link: PostgresLink, topic: Topic, group: str, offsets: Mapping[int, tuple[int, int]], now: int
) -> set[int]:
    """Write (offset, claim) of buckets, where no later claim was written meanwhile; those that were written."""
    link.changes += 1
    columns = list(offsets), [one[0] for one in offsets.values()], [one[1] for one in offsets.values()]
    rows = await link.fetch("put_log_offsets", topic.number, group, *columns, now)
    await link.execute("note_change", link.writer, link.changes)
    return {row["bucket"] for row in rows}


async def decide(
    link: PostgresLink, topic: Topic, group: str, commits: Sequence[OffsetCommit]
) -> tuple[list[Code], dict[int, tuple[int, int]]]:
    """The outcome of each commit, and what to write; the rows of the group are locked."""
    buckets = sorted({one.bucket for one in commits})
    ends = await ends_of(link, topic, buckets)
    held = await _lock(link, topic, group, buckets)
    codes, offsets = [], dict[int, tuple[int, int]]()
    for one in commits:
        if one.claim != (held[one.bucket][1] if one.bucket in held else 0):
            codes.append(Code.CLAIM_LOST)
        elif not 0 <= one.offset <= ends[one.bucket]:
            codes.append(Code.OFFSET_OUT_OF_RANGE)
        else:
            offsets[one.bucket] = one.offset, one.claim
            codes.append(Code.OK)
    return codes, offsets


async def commit(link: PostgresLink, topic: Topic, group: str, commits: Sequence[OffsetCommit], now: int) -> list[Code]:
    """Write what a group has read."""
    codes, offsets = await decide(link, topic, group, commits)
    if offsets and await _put(link, topic, group, offsets, now) != offsets.keys():
        raise Overtaken("a bucket was claimed meanwhile")
    return codes


async def claim(
    link: PostgresLink, topic: Topic, group: str, buckets: Sequence[int], now: int
) -> tuple[int, dict[int, int]]:
    """Claim buckets under a new number; the committed offset of each that has one."""
    await ends_of(link, topic, buckets)
    held = await _lock(link, topic, group, buckets)
    number: int = await link.value("next_claim")
    offsets = {bucket: (held[bucket][0] if bucket in held else -1, number) for bucket in buckets}
    if await _put(link, topic, group, offsets, now) != offsets.keys():
        raise Overtaken("a bucket was claimed meanwhile")
    return number, {bucket: offset for bucket, (offset, _) in offsets.items() if offset >= 0}


async def reset(link: PostgresLink, topic: Topic, group: str, offsets: Mapping[int, int], now: int) -> None:
    """Set the offsets of a group."""
    await _lock(link, topic, group, list(offsets))
    number: int = await link.value("next_claim")
    fresh = {bucket: (offset, number) for bucket, offset in offsets.items()}
    if await _put(link, topic, group, fresh, now) != fresh.keys():
        raise Overtaken("a bucket was claimed meanwhile")


async def groups(link: PostgresLink, topic: Topic) -> dict[str, dict[int, CommittedOffset]]:
    """Every group."""
    found: dict[str, dict[int, CommittedOffset]] = {}
    for row in await link.fetch("log_groups", topic.number):
        found.setdefault(row["name"], {})[row["bucket"]] = CommittedOffset(row["next"], row["claim"], row["at_ms"])
    return found
