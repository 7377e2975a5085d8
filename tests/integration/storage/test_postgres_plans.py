"""However little the planner knows of the tables, every statement looks its rows up."""

import re
import secrets

from dejaq.storage.postgres.leasing import over
from dejaq.storage.postgres.queries import SQL
from dejaq.storage.postgres.store import PostgresStorage
from dejaq.testing.postgres import shared_server

SCAN = re.compile(r"(Seq|Index|Index Only) Scan( using \w+)? on (message|lease|journal|session|counter)\b")
# Once an hour, beside the work.
WHOLE = {"forget_sessions"}


def _without_a_key(plan: list[str]) -> list[str]:
    """The scans that read more of a table than what they are asked for."""
    found = []
    for line, following in zip(plan, [*plan[1:], ""], strict=True):
        scan = SCAN.search(line)
        keyed = "Index Cond" in following and (
            scan is None or scan[3] != "message" or re.search(r"\b(id|place) ", following)
        )
        if scan is not None and not keyed:
            found.append(f"{line.strip()} {following.strip()}")
    return found


async def test_plans_made_for_an_empty_table_look_rows_up():
    storage = PostgresStorage(shared_server().dsn, cluster=f"plans_{secrets.token_hex(4)}", journal="x")
    await storage.open(0)
    connection = await storage._database.connect()
    await connection.execute("INSERT INTO lease VALUES (1, 1, 1, 1, 'w', 'x')")
    await connection.execute("VACUUM ANALYZE message, lease, session, journal, counter")
    bad = {}
    for name, text in SQL.items():
        if name == "due":
            continue
        query = over(name, 3, False) if "{due}" in text else text
        parameters = len((await connection.prepare(query)).get_parameters())
        await connection.execute(f"PREPARE {name}_ AS {query}")
        given = f"({', '.join(['NULL'] * parameters)})" if parameters else ""
        plan = [row[0] for row in await connection.fetch(f"EXPLAIN EXECUTE {name}_{given}")]
        if name not in WHOLE and (found := _without_a_key(plan)):
            bad[name] = found
    await connection.close()
    await storage.close()
    assert bad == {}
