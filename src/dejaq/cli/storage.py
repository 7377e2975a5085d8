"""`dejaq storage`: the schema of a shared store."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec

import click

from dejaq.cli.invocation import Group, Invocation, pass_invocation


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
    from dejaq.storage.postgres.address import Address
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
    from dejaq.storage.postgres.address import Address
    from dejaq.storage.postgres.schema import restored_at

    address = Address(dsn, cluster)
    asyncio.run(restored_at(address))
    invocation.output.record(
        {"storage": str(address), "schema": cluster}, f"schema {cluster} of {address} goes on under new numbers"
    )


def _need_driver() -> None:
    if find_spec("asyncpg") is None:
        raise click.UsageError("This needs what `pip install 'dejaq-mq[postgres]'` installs.")
