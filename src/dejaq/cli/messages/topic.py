"""`dejaq topic`: creates, changes, lists, describes and deletes topics."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from dejaq.cli.terminal.invocation import Group, Invocation, pass_invocation
from dejaq.cli.terminal.output import iso
from dejaq.cli.terminal.times import SECONDS
from dejaq.domain.topic import Encryption
from dejaq.errors import Code
from dejaq.limits import BROWSE_PAGE_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from dejaq.sdk.admin.cluster import TopicCopies, TopicInfo, TopicsPage
    from dejaq.sdk.admin.overview import AllTopics
    from dejaq.sdk.client import Client

# Topics that are read in one call.
PAGE_TOPICS = 500
# The same when each comes with its first messages.
PAGE_WITH_MESSAGES = 20
COPY_COLUMNS = ("serves", "name", "address", "buckets", "confirmed", "state", "lag_bytes")
COLUMNS = ("name", "state", "available", "waiting", "processing", "consumers", "producers", "buckets")


def topic_values(info: TopicInfo) -> dict[str, Any]:
    """A topic as plain values."""
    return {
        "name": info.name,
        "state": str(info.state),
        "available": info.available,
        "waiting": info.waiting,
        "processing": info.processing,
        "consumers": info.consumers,
        "producers": info.producers,
        "created_at": iso(info.created_ms),
        "creator": info.creator,
        **info.settings.as_dict(),
    }


@click.group(cls=Group)
def topic() -> None:
    """Create, edit, list, describe and delete topics."""


def _log_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """An option for each setting of a log."""
    for option in reversed(
        (
            click.option("--keep", type=SECONDS, help="How long a log keeps messages, such as 7d."),
            click.option("--keep-bytes", type=int, metavar="N", help="How many bytes a log keeps in all."),
            click.option(
                "--rollback-window",
                type=SECONDS,
                help="How long a batch of a log can be rolled back, such as 30s; committed readers wait for it.",
            ),
            click.option(
                "--trim-read/--no-trim-read", default=None, help="Remove from a log what every group has read."
            ),
            click.option(
                "--compact/--no-compact", default=None, help="Keep only the latest message of each key of a log."
            ),
        )
    ):
        command = option(command)
    return command


def _settings_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """An option for each setting of a topic."""
    for option in reversed(
        (
            click.option("--buckets", type=int, help="The number of buckets; it cannot be changed later."),
            click.option("--max-future", type=SECONDS, help="How far in the future a message may be due, such as 90d."),
            click.option("--max-lease", type=SECONDS, help="The longest lease a consumer may ask for, such as 15m."),
            click.option(
                "--max-body", type=int, metavar="BYTES", help="The largest body that is accepted, up to 64 MiB."
            ),
            click.option(
                "--durability", type=click.Choice(["fsync", "relaxed"]), help="When a change is acknowledged."
            ),
            click.option(
                "--kind",
                type=click.Choice(["timeline", "priority", "cron", "log"]),
                help="The order in which messages are delivered.",
            ),
            click.option(
                "--max-attempts",
                type=int,
                help="The number of leases a message may have before it moves to the dead-letter topic.",
            ),
            click.option("--dead-letter", metavar="TOPIC", help="The topic for dead letters. Default: NAME.dead"),
            click.option(
                "--expiry-backoff",
                metavar="POLICY",
                help="The wait after an expired lease, such as exponential:1s:5m:0.5",
            ),
            click.option(
                "--expires",
                is_flag=True,
                default=None,
                help="Discard messages when their time comes; they are never leased.",
            ),
            click.option(
                "--journal/--no-journal", default=None, help="Whether every change is written to the journal."
            ),
            click.option(
                "--client-rate",
                type=int,
                metavar="N",
                help="The number of messages per second that one client may create or change.",
            ),
            click.option("--compression", type=click.Choice(["none", "zstd"]), help="How clients compress bodies."),
            click.option(
                "--encryption",
                type=click.Choice([*map(str, Encryption)]),
                help="What the broker encrypts in its store; it cannot be changed later.",
            ),
            click.option("--share-bodies/--no-share-bodies", default=None, help="Store each body once."),
            click.option(
                "--dedup",
                type=SECONDS,
                help="How long an own id stays taken after its creation, such as 24h; it cannot be changed later.",
            ),
            click.option(
                "--max-dedup-ids", type=int, metavar="N", help="The maximum number of ids that are remembered."
            ),
        )
    ):
        command = option(command)
    return command


def _chosen(max_body: int | None, rest: dict[str, Any]) -> Any:
    """The settings that were given, by the names they have in the SDK."""
    values = {**rest, "max_body_bytes": max_body}
    return {key: value for key, value in values.items() if value is not None}


@topic.command()
@click.argument("name")
@_settings_options
@_log_options
@pass_invocation
def create(
    invocation: Invocation,
    /,
    name: str,
    max_body: int | None,
    **rest: Any,
) -> None:
    """Create the topic NAME. A repeat with the same settings changes nothing."""
    settings = _chosen(max_body, rest)

    async def work(client: Client) -> TopicInfo:
        return await client.create_topic(name, **settings)

    made = invocation.run(work)
    fate = "created" if made.created else "already exists, with the same settings"
    invocation.output.record(
        {**topic_values(made), "created": made.created}, f"topic {name} {fate}; {made.settings.buckets} buckets"
    )


@topic.command()
@click.argument("name")
@_settings_options
@_log_options
@pass_invocation
def edit(
    invocation: Invocation,
    /,
    name: str,
    max_body: int | None,
    **rest: Any,
) -> None:
    """Change settings of the topic NAME while it is in use; what is not given stays.

    Buckets, kind, journal, expires, share-bodies, encryption and dedup are fixed when a topic is created.
    """
    settings = _chosen(max_body, rest)
    if not settings:
        raise click.UsageError("Give a setting to change, such as --max-attempts 5.")

    async def work(client: Client) -> TopicInfo:
        return await client.edit_topic(name, **settings)

    from dejaq.sdk.admin.topics import DURATIONS

    changed = topic_values(invocation.run(work))
    line = ", ".join(f"{key} is {changed[key]}" for key in (DURATIONS.get(key, key) for key in settings))
    invocation.output.record(changed, f"topic {name}: {line}")


@topic.command(name="list")
@click.option("--mine", "namespace", flag_value="~", help="Only your own topics, ~USER/NAME.")
@click.option("--global", "namespace", flag_value="global", help="Only topics that belong to no user.")
@click.option("--user", metavar="NAME", help="Only the topics of this user.")
@click.option("--count", type=click.IntRange(1), metavar="N", help="One page of so many topics, and their number.")
@click.option("--after", default="", metavar="NAME", help="The topics after this name; the last of the page before.")
@click.option(
    "--messages",
    type=click.IntRange(1, BROWSE_PAGE_MAX),
    metavar="N",
    help="With each topic its first N messages: those due next, or the last of a log.",
)
@pass_invocation
def list_topics(
    invocation: Invocation,
    /,
    namespace: str | None,
    user: str | None,
    count: int | None,
    after: str,
    messages: int | None,
) -> None:
    """List the topics that you may see, with their exact counts."""
    if user is not None and namespace is not None:
        raise click.UsageError("Give one of --mine, --global and --user.")
    chosen = f"~{user}" if user is not None else namespace or ""
    if messages is not None:
        _list_with_messages(invocation, chosen, after, count or PAGE_WITH_MESSAGES, messages)
        return

    async def work(client: Client) -> TopicsPage:
        if count is not None:
            return await client.topics_page(after=after, count=count, namespace=chosen)
        topics: list[TopicInfo] = []
        while True:
            last = topics[-1].name if topics else after
            page = await client.topics_page(after=last, count=PAGE_TOPICS, namespace=chosen)
            topics += page.topics
            if not page.more or not page.topics:
                return replace(page, topics=topics)

    page = invocation.run(work)
    rows = [topic_values(info) for info in page.topics]
    invocation.output.table(
        rows,
        COLUMNS,
        numbers=COLUMNS[2:],
        empty="no topics yet; make one with `dejaq topic create NAME`",
    )
    if page.more and not invocation.json:
        following = f"--count {count} --after {rows[-1]['name']}"
        invocation.output.line(f"{len(rows)} of {page.total} topics; the next page: dejaq topic list {following}")


def _list_with_messages(invocation: Invocation, namespace: str, after: str, count: int, messages: int) -> None:
    """Topics, each followed by its first messages; as JSON, they are in the field `messages` of the topic."""
    from dejaq.cli.messages.log import log_message_line, log_message_values
    from dejaq.cli.messages.message import message_line, message_values
    from dejaq.domain.message import Message

    async def work(client: Client) -> tuple[AllTopics, int]:
        page = await client.all_topics(messages=messages, after=after, count=count, namespace=namespace)
        return page, client.now_ms()

    page, now_ms = invocation.run(work)
    output = invocation.output
    for entry in page.entries:
        info, values, lines = entry.topic, list[dict[str, Any]](), list[str]()
        for message in entry.messages:
            if isinstance(message, Message):
                values.append(message_values(message, now_ms))
                lines.append(message_line(message, now_ms))
            else:
                values.append(log_message_values(message))
                lines.append(log_message_line(message))
        counts = f"{info.available} available, {info.waiting} waiting, {info.processing} processing"
        head = f"{info.name}: {info.settings.kind}, {counts}"
        output.record(topic_values(info) | {"messages": values}, "\n  ".join([head, *lines]))
    if page.more and not invocation.json:
        following = f"--messages {messages} --count {count} --after {page.entries[-1].topic.name}"
        output.line(f"{len(page.entries)} of {page.total} topics; the next page: dejaq topic list {following}")


@topic.command()
@click.argument("name")
@pass_invocation
def describe(invocation: Invocation, name: str) -> None:
    """Show one topic: its state, counts and settings."""

    async def work(client: Client) -> TopicInfo:
        return await client.describe_topic(name)

    invocation.output.record(topic_values(invocation.run(work)))


@topic.command()
@click.argument("name")
@pass_invocation
def copies(invocation: Invocation, name: str) -> None:
    """Show which brokers serve the topic NAME, and which servers have copies of its messages."""

    async def work(client: Client) -> TopicCopies:
        return await client.copies(name)

    found = invocation.run(work)
    rows: list[dict[str, Any]] = [
        {"serves": "broker", "name": broker, "address": address} for broker, address in found.brokers
    ]
    for store in found.stores:
        server = {"serves": "server", "name": store.shard or "postgres", "buckets": store.buckets}
        rows.append(server | {"confirmed": store.confirmed})
        for standby in store.standbys:
            copy = {"serves": "standby", "name": standby.name, "state": standby.state}
            rows.append(copy | {"lag_bytes": standby.lag_bytes})
    invocation.output.table(rows, COPY_COLUMNS, numbers=("buckets", "confirmed", "lag_bytes"))
    if found.stores:
        least = min(store.confirmed for store in found.stores)
        invocation.output.note(f"a change is acknowledged when {least + 1} servers have it on disk")


@topic.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@pass_invocation
def delete(invocation: Invocation, name: str, yes: bool) -> None:
    """Delete the topic NAME with every message in it."""
    invocation.hints[Code.TOPIC_NOT_FOUND] = "nothing was deleted; `dejaq topic list` shows all topics"
    if not yes and not invocation.json:
        click.confirm(f"Delete topic {name} and every message in it?", abort=True, err=True)

    async def work(client: Client) -> None:
        await client.delete_topic(name)

    invocation.run(work)
    invocation.output.record({"name": name, "state": "deleting"}, f"topic {name} is being deleted")
