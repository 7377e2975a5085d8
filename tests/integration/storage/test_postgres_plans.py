"""Whatever statistics the planner has, every statement finds its rows by an index."""

import re
import secrets

import asyncpg

from dejaq.storage.postgres.operations.leasing import over
from dejaq.storage.postgres.queries import SQL
from dejaq.storage.postgres.store import PostgresStorage
from dejaq.testing.servers.postgres import shared_server

SCAN = re.compile(r"(Seq|Index|Index Only) Scan( using \w+)? on (message|lease|journal|session|counter)\b")
# Rare statements: once per hour, on a user's request, or when buckets move. Large bodies have an index of their own.
WHOLE = {"forget_sessions", "list_counters", "outboxes", "moved_leases", "reclaim_large"}


def _without_a_key(plan: list[str]) -> list[str]:
    """The scans that read more of a table than the requested rows."""
    found = []
    for line, following in zip(plan, [*plan[1:], ""], strict=True):
        scan = SCAN.search(line)
        keyed = "Index Cond" in following and (
            scan is None or scan[3] != "message" or re.search(r"\b(id|place) ", following)
        )
        if scan is not None and not keyed:
            found.append(f"{line.strip()} {following.strip()}")
    return found


async def _plan(connection: asyncpg.Connection, name: str, query: str) -> list[str]:
    """The plan that a connection of the store keeps for a query."""
    parameters = len((await connection.prepare(query)).get_parameters())
    await connection.execute(f"PREPARE {name}_ AS {query}")
    given = f"({', '.join(['NULL'] * parameters)})" if parameters else ""
    return [row[0] for row in await connection.fetch(f"EXPLAIN EXECUTE {name}_{given}")]


async def test_plans_made_for_an_empty_table_use_an_index() -> None:
    storage = PostgresStorage(shared_server().dsn, cluster=f"plans_{secrets.token_hex(4)}", journal="x")
    await storage.open(0)
    connection = await storage._database.connect()
    await connection.execute("INSERT INTO lease VALUES (1, 1, 1, 1, 'w', 'x')")
    await connection.execute("VACUUM ANALYZE message, lease, session, journal, counter, count_list")
    bad = {}
    for name, text in SQL.items():
        # Statements that change the schema have no plan.
        if name == "due" or not text.startswith(("SELECT", "INSERT", "UPDATE", "DELETE", "WITH")):
            continue
        query = over(name, 3, False) if "{due}" in text else text
        plan = await _plan(connection, name, query)
        if name not in WHOLE and (found := _without_a_key(plan)):
            bad[name] = found
    await connection.close()
    await storage.close()
    assert bad == {}


async def test_a_lease_reads_each_bucket_in_the_order_of_its_kind_of_topic() -> None:
    """Due messages are merged from ordered scans, by an index of their own for priorities; nothing is sorted."""
    storage = PostgresStorage(shared_server().dsn, cluster=f"plans_{secrets.token_hex(4)}")
    await storage.open(0)
    connection = await storage._database.connect()
    for by_priority, index in ((False, "message_timeline"), (True, "message_rank")):
        plan = await _plan(connection, index, over("lease", 3, by_priority))
        assert sum(f"using {index} " in line for line in plan) == 3, plan
        assert not [line for line in plan if line.lstrip(" ->").startswith(("Sort  ", "Incremental Sort  "))], plan
    await connection.close()
    await storage.close()
