"""The schema of one cluster in a database: created, upgraded, and refused when it belongs to a newer release."""

from __future__ import annotations

import asyncpg

from dejaq.errors import Code, error_of
from dejaq.storage.postgres.connection.address import Address
from dejaq.storage.postgres.connection.connecting import connect
from dejaq.storage.postgres.connection.failures import DRIVER_ERRORS, failure_of
from dejaq.storage.postgres.queries import SQL, load_migrations

_TRIES = 5
_CONNECT_SECONDS = 10.0


async def version_of(connection: asyncpg.Connection, address: Address) -> int:
    """The version of the schema; 0 when there is none."""
    there = await connection.fetchval(
        "SELECT 1 FROM information_schema.tables WHERE table_schema = $1 AND table_name = 'migration'", address.schema
    )
    if not there:
        return 0
    return int(await connection.fetchval(f"SELECT coalesce(max(version), 0) FROM {_quoted(address)}.migration"))  # noqa: S608


async def check(connection: asyncpg.Connection, address: Address) -> None:
    """Create the schema in an empty database; raise STORE_NEWER or STORE_FAILED when it does not belong to this
    release.
    """
    version, ours = await version_of(connection, address), len(load_migrations())
    if version == 0:
        await migrate(connection, address)
    elif version > ours:
        raise newer(address, version, ours)
    elif version < ours:
        raise error_of(
            Code.STORE_FAILED,
            f"schema {address.schema!r} of {address} has version {version}, this release needs {ours}; "
            "run: dejaq storage migrate",
        )


async def migrate_at(address: Address) -> tuple[int, int]:
    """Migrate the schema of an address; returns the version before and after."""
    try:
        connection = await connect(address.dsn, seconds=_CONNECT_SECONDS)
        try:
            return await migrate(connection, address)
        finally:
            await connection.close()
    except DRIVER_ERRORS as error:
        raise failure_of(error, address) from None


async def restored_at(address: Address) -> None:
    """Continue with numbers that were never used; for a schema that was restored from a backup."""
    await _ask(address, "skip_numbers")


async def outboxes_at(address: Address) -> list[tuple[str, int]]:
    """The name of each broker's outbox, and how many of its records wait for export."""
    return [(row["name"], row["waiting"]) for row in await _ask(address, "outboxes")]


async def _ask(address: Address, query: str) -> list[asyncpg.Record]:
    try:
        connection = await connect(address.dsn, seconds=_CONNECT_SECONDS)
        try:
            await check(connection, address)
            await connection.execute(f"SET search_path TO {_quoted(address)}")
            records: list[asyncpg.Record] = await connection.fetch(SQL[query])
            return records
        finally:
            await connection.close()
    except DRIVER_ERRORS as error:
        raise failure_of(error, address) from None


async def migrate(connection: asyncpg.Connection, address: Address) -> tuple[int, int]:
    """Apply every missing step, each in its own transaction; returns the version before and after."""
    steps = load_migrations()
    schema = _quoted(address)
    before = await version_of(connection, address)
    if before > len(steps):
        raise newer(address, before, len(steps))
    await _begin(connection, schema)
    numbered = list(enumerate(steps, start=1))
    # One transaction creates a new schema, so that no process that starts meanwhile mistakes it for an older release's.
    for portion in [numbered] if before == 0 else [[one] for one in numbered]:
        try:
            async with connection.transaction():
                await connection.execute(f"SET LOCAL search_path TO {schema}")
                for version, step in portion:
                    # The first process inserts the row; another process waits here and then finds the step done.
                    await connection.execute("INSERT INTO migration (version) VALUES ($1)", version)
                    await connection.execute(step)
        except asyncpg.UniqueViolationError:
            continue
    if before == 0 and await version_of(connection, address) < len(steps):
        # A process of an older release created it first.
        await migrate(connection, address)
    return before, len(steps)


async def _begin(connection: asyncpg.Connection, schema: str) -> None:
    for attempt in range(1, _TRIES + 1):
        try:
            async with connection.transaction():
                # The user may be allowed to use an existing schema, but not to create one.
                there = await connection.fetchval("SELECT 1 FROM pg_namespace WHERE nspname = $1", schema.strip('"'))
                if not there:
                    await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
                await connection.execute(
                    f"CREATE TABLE IF NOT EXISTS {schema}.migration "
                    "(version integer PRIMARY KEY, applied timestamptz NOT NULL DEFAULT now())"
                )
            return
        except (asyncpg.UniqueViolationError, asyncpg.DuplicateObjectError, asyncpg.DuplicateSchemaError):
            # Two brokers created it at the same moment; IF NOT EXISTS does not cover that.
            if attempt == _TRIES:
                raise


def newer(address: Address, version: int, ours: int) -> Exception:
    """The error for a schema of a newer release."""
    return error_of(
        Code.STORE_NEWER,
        f"schema {address.schema!r} of {address} has version {version}; this release knows up to {ours}; upgrade DejaQ",
    )


def _quoted(address: Address) -> str:
    return f'"{address.schema}"'
