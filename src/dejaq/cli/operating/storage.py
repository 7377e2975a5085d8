"""`dejaq storage`: the schema of a shared store, and the directory of an embedded one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from dejaq.cli.terminal.invocation import Group, Invocation, pass_invocation
from dejaq.cli.terminal.progress import ProgressBar
from dejaq.errors import Code, error_of
from dejaq.storage.postgres.connection.address import Address, without_password


@click.group(cls=Group)
def storage() -> None:
    """Manage a shared store, or look at the directory of an embedded one."""


@storage.command()
@click.argument("dsn")
@click.option("--cluster", default="dejaq", show_default=True, help="The cluster that the schema belongs to.")
@pass_invocation
def migrate(invocation: Invocation, /, dsn: str, cluster: str) -> None:
    """Upgrade the schema in the database at DSN to this release, or create it.

    Brokers of this release refuse an older schema; brokers of an older release refuse the new one. A broker creates
    the schema by itself in a database that has none.
    """
    _need_driver()
    from dejaq.storage.postgres.connection.schema import migrate_at

    address = Address(dsn, cluster)
    before, after = asyncio.run(migrate_at(address))
    done = "is up to date" if before == after else f"was brought from version {before}"
    invocation.output.record(
        {"storage": str(address), "schema": cluster, "before": before, "version": after},
        f"schema {cluster} of {address} {done}: version {after}",
    )


@storage.command()
@click.argument("dsn")
@click.option("--cluster", default="dejaq", show_default=True, help="The cluster that the schema belongs to.")
@pass_invocation
def restored(invocation: Invocation, /, dsn: str, cluster: str) -> None:
    """Record that the schema in the database at DSN was restored from a backup.

    Run this before the brokers start again. Numbers of leases and topics that were given after the backup are then
    not used again, so a consumer that still holds such a lease cannot change another message.
    """
    _need_driver()
    from dejaq.storage.postgres.connection.schema import restored_at

    address = Address(dsn, cluster)
    asyncio.run(restored_at(address))
    invocation.output.record(
        {"storage": str(address), "schema": cluster}, f"schema {cluster} of {address} continues with new numbers"
    )


@storage.command()
@click.argument("dsn")
@click.option("--cluster", default="dejaq", show_default=True, help="The cluster that the schema belongs to.")
@pass_invocation
def outboxes(invocation: Invocation, /, dsn: str, cluster: str) -> None:
    """Show the journal records in the database at DSN that brokers have not yet exported.

    A broker that lost its data directory begins another outbox, and no broker exports the records of the previous
    one. Write the name of that outbox into the file `outbox` of the broker's new directory before it starts; the
    broker then continues with it.
    """
    _need_driver()
    from dejaq.storage.postgres.connection.schema import outboxes_at

    for name, waiting in asyncio.run(outboxes_at(Address(dsn, cluster))):
        invocation.output.record({"outbox": name, "waiting": waiting}, f"{name}  {waiting} records wait")


@storage.command()
@click.argument("data", metavar="DIR", type=click.Path(file_okay=False, exists=True, path_type=Path))
@pass_invocation
def inspect(invocation: Invocation, /, data: Path) -> None:
    """Show what the data directory DIR has.

    The files of the commit log with their live bytes, the limits of the log, the wide runs of each level of merges, and
    the tables of the database.

    A broker may use the directory meanwhile.
    """
    from dejaq.storage.rocksdb.engine.inspecting import inspect

    found = inspect(data)
    bounds = found["log_limits"]
    lines = [
        f"{data}: format {found['format']}, {found['starts']} starts",
        f"commit log: {found['log_bytes']:,} bytes; durable at least up to record {found['watermark']}, "
        f"in tables up to record {found['flushed']}",
        *(
            f"  {one['file']}  {one['bytes']:,} bytes, {one['live_bytes']:,} of them live in {one['runs']:,} frames, "
            f"from record {one['first']}"
            for one in found["log_files"]
        ),
        f"  at most {bounds['bytes_max']:,} bytes in {bounds['files_max']} files; for an exporter that lags at most "
        f"{bounds['journal_bytes_max']:,} bytes; the database is flushed every {bounds['flush_bytes']:,} bytes",
        f"segments of logs: {found['segments']['files']:,} files, {found['segments']['bytes']:,} bytes",
        *(
            f"  topic {topic}: {one['files']:,} files, {one['bytes']:,} bytes with {one['content_bytes']:,} of batches"
            for topic, one in found["segments"]["topics"].items()
        ),
        "wide runs:" if found["wide_runs"] else "wide runs: none",
        *(f"  level {level}: {count:,}" for level, count in found["wide_runs"].items()),
        f"own ids: {found['ids']['entries']:,} entries in {found['ids']['runs']:,} runs, about "
        f"{found['ids']['memory_bytes']:,} bytes of memory",
        "tables:" if found["levels"] else "tables: none",
        *(f"  level {one['level']}: {one['tables']} tables, {one['bytes']:,} bytes" for one in found["levels"]),
    ]
    invocation.output.record(found, "\n".join(lines))


@storage.command()
@click.argument("data", metavar="DIR", type=click.Path(file_okay=False, exists=True, path_type=Path))
@pass_invocation
def check(invocation: Invocation, /, data: Path) -> None:
    """Read everything in the data directory DIR of a stopped broker, and verify it.

    The command reads every table of the database with its checksums, the manifest and the watermark, every record and
    frame of the commit log, every run that is a frame, and every segment of a log. It changes nothing, and ends with an
    error when something is wrong.
    """
    from dejaq.storage.rocksdb.engine.inspecting import check

    with ProgressBar("checking", None, quiet=invocation.json) as bar:
        found = check(data, lambda count: bar.advance(count, ""))
    summary = (
        f"{data}: {found['database_records']:,} records of the database, {found['log_records']:,} records and "
        f"{found['log_frames']:,} frames of the commit log, {found['log_runs']:,} of them needed, "
        f"{found['segments']:,} segments of logs"
    )
    invocation.output.record(found, "\n".join([summary, *found["problems"]]))
    if found["problems"]:
        raise error_of(Code.STORE_CORRUPT, f"{data} has {len(found['problems'])} problems; restore it from a backup")


def _need_driver() -> None:
    if find_spec("asyncpg") is None:
        raise click.UsageError("This needs what `pip install 'dejaq-mq[postgres]'` installs.")


def _where(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that identify the cluster."""
    told = "The synchronization service of its brokers: etcd://host:port,... or embedded://host:port,..."
    function = click.option("--synchronization", metavar="WHERE", required=True, help=told)(function)
    return click.option("--cluster", default="dejaq", show_default=True, help="The cluster.")(function)


@storage.command("add-shard")
@click.argument("name")
@click.argument("dsn")
@_where
@click.option(
    "--grace", type=float, default=20.0, show_default=True, help="Seconds during which late writers are refused."
)
@click.option(
    "--at-once",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help="The number of buckets that move at the same time.",
)
@pass_invocation
def add_shard(
    invocation: Invocation, /, name: str, dsn: str, synchronization: str, cluster: str, grace: float, at_once: int
) -> None:
    """Add the database at DSN to the storage of a running cluster, as the shard NAME.

    The buckets of the new shard move to it, a few at a time, while the brokers work; all others stay. Requests for a
    bucket wait while it moves. If the command was interrupted, run it again to continue. The brokers are notified of
    the shard; also add it to their configuration for their next start.
    """
    _need_driver()
    from dejaq.broker.shards.moving import add

    Address(dsn, cluster)
    with ProgressBar("moving buckets", None, quiet=invocation.json) as bar:
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
    """List the shards of a running cluster: address, buckets, messages and size."""
    _need_driver()
    from dejaq.broker.shards.moving import describe

    for one in asyncio.run(describe(synchronization=synchronization, cluster=cluster)):
        state = f", {one.state}" if one.state else ""
        invocation.output.record(
            one.as_dict(),
            f"{one.name}  {one.address}  {one.buckets} buckets, {one.messages:,} messages, {one.size:,} bytes{state}",
        )
