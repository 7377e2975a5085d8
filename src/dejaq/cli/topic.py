"""`dejaq topic`: make, list, describe and delete topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dejaq.cli.invocation import Group, Invocation, pass_invocation
from dejaq.cli.output import iso
from dejaq.cli.times import SECONDS

if TYPE_CHECKING:
    from dejaq.sdk.admin import TopicInfo
    from dejaq.sdk.client import Client

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
        **info.settings.as_dict(),
    }


@click.group(cls=Group)
def topic() -> None:
    """Create, list, describe and delete topics."""


@topic.command()
@click.argument("name")
@click.option("--buckets", type=int, help="How many parts it is spread over; fixed for good.")
@click.option("--max-future", type=SECONDS, help="How far ahead a message may be scheduled.")
@click.option("--max-lease", type=SECONDS, help="The longest lease a consumer may ask for.")
@click.option("--max-body", type=int, metavar="BYTES", help="The largest body that is accepted, up to 64 MiB.")
@click.option("--durability", type=click.Choice(["fsync", "relaxed"]), help="When a change is acknowledged.")
@click.option("--kind", type=click.Choice(["timeline", "priority", "cron"]), help="What decides which message is next.")
@click.option("--max-attempts", type=int, help="Leases a message may have before it goes to the dead-letter topic.")
@click.option("--dead-letter", metavar="TOPIC", help="Where dead letters go. Default: NAME.dead")
@click.option("--expiry-backoff", metavar="POLICY", help="Wait after a lost lease, such as exponential:1s:5m:0.5")
@click.option(
    "--expires", is_flag=True, default=None, help="Remove messages when their time comes; nobody leases them."
)
@click.option("--journal/--no-journal", default=None, help="Whether every change is written to the journal.")
@click.option("--client-rate", type=int, metavar="N", help="Messages a second that one client may create or change.")
@click.option("--compression", type=click.Choice(["none", "zstd"]), help="What is done to bodies on their way in.")
@click.option("--share-bodies/--no-share-bodies", default=None, help="Store each body once.")
@pass_invocation
def create(
    invocation: Invocation,
    name: str,
    buckets: int | None,
    max_future: float | None,
    max_lease: float | None,
    max_body: int | None,
    durability: str | None,
    kind: str | None,
    max_attempts: int | None,
    dead_letter: str | None,
    expiry_backoff: str | None,
    journal: bool | None,
    expires: bool | None,
    client_rate: int | None,
    compression: str | None,
    share_bodies: bool | None,
) -> None:
    """Create the topic NAME. A repeat with the same settings changes nothing."""
    chosen: dict[str, Any] = {
        "buckets": buckets,
        "max_future_ms": None if max_future is None else round(max_future * 1000),
        "max_lease_ms": None if max_lease is None else round(max_lease * 1000),
        "max_body_bytes": max_body,
        "durability": durability,
        "kind": kind,
        "max_attempts": max_attempts,
        "dead_letter": dead_letter,
        "expiry_backoff": expiry_backoff,
        "journal": journal,
        "expires": expires,
        "client_rate": client_rate,
        "compression": compression,
        "share_bodies": share_bodies,
    }
    settings = {key: value for key, value in chosen.items() if value is not None}

    async def work(client: Client) -> TopicInfo:
        return await client.create_topic(name, **settings)

    made = invocation.run(work)
    fate = "created" if made.created else "was there already, with the same settings"
    invocation.output.record(
        {**topic_values(made), "created": made.created}, f"topic {name} {fate}; {made.settings.buckets} buckets"
    )


@topic.command(name="list")
@pass_invocation
def list_topics(invocation: Invocation) -> None:
    """List every topic with its exact counts."""

    async def work(client: Client) -> list[TopicInfo]:
        return list(await client.topics())

    rows = [topic_values(info) for info in invocation.run(work)]
    invocation.output.table(
        rows,
        COLUMNS,
        numbers=COLUMNS[2:],
        empty="no topics yet; make one with `dejaq topic create NAME`",
    )


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
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_invocation
def delete(invocation: Invocation, name: str, yes: bool) -> None:
    """Delete the topic NAME with every message in it."""
    if not yes and not invocation.json:
        click.confirm(f"Delete topic {name} and every message in it?", abort=True, err=True)

    async def work(client: Client) -> None:
        await client.delete_topic(name)

    invocation.run(work)
    invocation.output.record({"name": name, "state": "deleting"}, f"topic {name} is being deleted")
