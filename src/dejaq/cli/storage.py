"""`dejaq storage`: the schema of a shared store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import click

from dejaq.cli.invocation import Group, Invocation, pass_invocation
from dejaq.cli.progress import Progress
from dejaq.storage.postgres.address import Address, without_password


@click.group(cls=Group)
def storage() -> None:
    """Look after a shared store."""


@storage.command()
@click.argument("dsn")
@click.option("--cluster", default="dejaq", show_default=True, help="The cluster whose schema it is.")
@pass_invocation
def migrate(invocation: Invocation, /, dsn: str, cluster: str) -> None:
    """Bring the schema in the database at DSN up to this release, making it where it is not there.

    Brokers of this release refuse an older schema; brokers of an older release refuse the new one. A broker makes the
    schema by itself in a database that has none.
    """
    _need_driver()
    from dejaq.storage.postgres.schema import migrate_at

    address = Address(dsn, cluster)
    before, after = asyncio.run(migrate_at(address))
    done = "is up to date" if before == after else f"was brought from version {before}"
    invocation.output.record(
        {"storage": str(address), "schema": cluster, "before": before, "version": after},
        f"schema {cluster} of {address} {done}: version {after}",
    )


@storage.command()
@click.argument("dsn")
@click.option("--cluster", default="dejaq", show_default=True, help="The cluster whose schema it is.")
@pass_invocation
def restored(invocation: Invocation, /, dsn: str, cluster: str) -> None:
    """Say that the schema in the database at DSN was restored from a backup, before its brokers start again.

    Leases and topics that were given after the backup was made are then not given anew under the same numbers, so that
    nobody who still holds such a lease can change another's message.
    """
    _need_driver()
    from dejaq.storage.postgres.schema import restored_at

    address = Address(dsn, cluster)
    asyncio.run(restored_at(address))
    invocation.output.record(
        {"storage": str(address), "schema": cluster}, f"schema {cluster} of {address} goes on under new numbers"
    )


@storage.command()
@click.argument("dsn")
@click.option("--cluster", default="dejaq", show_default=True, help="The cluster whose schema it is.")
@pass_invocation
def outboxes(invocation: Invocation, /, dsn: str, cluster: str) -> None:
    """Show what waits in the database at DSN to be written to the journals of brokers.

    A broker that lost its data directory begins another outbox, and nobody exports what waits in the one before. Write
    that one's name into the file `outbox` of its new directory before it starts, and it goes on with it.
    """
    _need_driver()
    from dejaq.storage.postgres.schema import outboxes_at

    for name, waiting in asyncio.run(outboxes_at(Address(dsn, cluster))):
        invocation.output.record({"outbox": name, "waiting": waiting}, f"{name}  {waiting} records wait")


def _need_driver() -> None:
    if find_spec("asyncpg") is None:
        raise click.UsageError("This needs what `pip install 'dejaq-mq[postgres]'` installs.")


def _where(function: Callable[..., Any]) -> Callable[..., Any]:
    """How to find the cluster whose shards are meant."""
    told = "Where its brokers meet: etcd://host:port,... or embedded://host:port,..."
    function = click.option("--synchronization", metavar="WHERE", required=True, help=told)(function)
    return click.option("--cluster", default="dejaq", show_default=True, help="The cluster.")(function)


@storage.command("add-shard")
@click.argument("name")
@click.argument("dsn")
@_where
@click.option("--grace", type=float, default=20.0, show_default=True, help="Seconds a late writer is refused for.")
@click.option("--at-once", type=click.IntRange(1), default=64, show_default=True, help="Buckets that move at a time.")
@pass_invocation
def add_shard(
    invocation: Invocation, /, name: str, dsn: str, synchronization: str, cluster: str, grace: float, at_once: int
) -> None:
    """Add the database at DSN to the storage of a running cluster, as the shard NAME.

    The buckets that are the new shard's move to it, a few at a time, while the brokers serve; all others stay where
    they are. What is sent to a bucket meanwhile waits for it. A move that was interrupted goes on when the command is
    given again. The brokers learn of the shard by themselves; name it in their configuration too, for their next start.
    """
    _need_driver()
    from dejaq.broker.cluster.moving import add

    Address(dsn, cluster)
    with Progress("moving buckets", None, quiet=invocation.json) as bar:
        done = asyncio.run(
            add(
                name,
                dsn,
                synchronization=synchronization,
                cluster=cluster,
                grace=grace,
                at_once=at_once,
                tell=lambda moved: bar.advance(0, f"{moved.moved} of {moved.buckets}, {moved.messages:,} messages"),
            )
        )
    told = {"shard": name, "storage": without_password(dsn), "buckets": done.moved, "messages": done.messages}
    invocation.output.record(
        told, f"shard {name} is there: {done.moved} buckets with {done.messages:,} messages moved to it"
    )


@storage.command()
@_where
@pass_invocation
def shards(invocation: Invocation, /, synchronization: str, cluster: str) -> None:
    """List the shards of a running cluster: where each is, its buckets, its messages and its size."""
    _need_driver()
    from dejaq.broker.cluster.moving import describe

    for one in asyncio.run(describe(synchronization=synchronization, cluster=cluster)):
        state = f", {one.state}" if one.state else ""
        invocation.output.record(
            one.as_dict(),
            f"{one.name}  {one.address}  {one.buckets} buckets, {one.messages:,} messages, {one.size:,} bytes{state}",
        )
