"""The members of groups at all brokers, each step in a transaction."""

from __future__ import annotations

from collections.abc import Sequence

from dejaq.domain.topic import Topic
from dejaq.storage.log.base import MEMBER_MS, GroupSeat, GroupView
from dejaq.storage.postgres.connection.database import PostgresLink


async def meet(
    link: PostgresLink, topic: Topic, group: str, broker: str, members: Sequence[str], joined: Sequence[str]
) -> GroupView:
    """Renew the members of a broker; doing it twice does no harm."""
    key = topic.number, group
    await link.execute("remove_log_members", *key, broker, members, MEMBER_MS)
    if joined:
        await link.execute("free_log_buckets", *key, joined)
        await link.execute("join_log_group", *key, joined, broker)
    await link.execute("renew_log_members", *key, members, broker)
    await link.execute("free_orphaned_log_buckets", *key)
    seats = [GroupSeat(row["member"], row["broker"]) for row in await link.fetch("log_seats", *key)]
    holders = {row["bucket"]: row["member"] for row in await link.fetch("log_holders", *key)}
    claims = {row["bucket"]: row["claim"] for row in await link.fetch("log_claims", *key)}
    return GroupView(tuple(seats), holders, claims)


async def hold(
    link: PostgresLink, topic: Topic, group: str, broker: str, member: str, buckets: Sequence[int]
) -> set[int]:
    """Give free buckets to a member."""
    rows = await link.fetch("hold_log_buckets", topic.number, group, member, broker, buckets)
    return {row["bucket"] for row in rows}


async def members(link: PostgresLink, topic: Topic) -> dict[str, list[GroupSeat]]:
    """The members of every group."""
    found: dict[str, list[GroupSeat]] = {}
    for row in await link.fetch("log_members", topic.number, MEMBER_MS):
        found.setdefault(row["name"], []).append(GroupSeat(row["member"], row["broker"]))
    return found
