"""`dejaq storage migrate` and `dejaq serve --storage`, as a user runs them."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path

from dejaq.testing.postgres import shared_server
from dejaq.testing.process import BrokerProcess, free_port
from tests.acceptance.process import dejaq
from tests.acceptance.test_serve_errors import check


def test_a_schema_is_made_once_and_then_up_to_date() -> None:
    name = f"cli_{secrets.token_hex(4)}"
    first, second = [dejaq("storage", "migrate", shared_server().dsn, "--cluster", name, "--json") for _ in range(2)]
    assert (first.code, second.code) == (0, 0)
    made, kept = first.objects[0], second.objects[0]
    assert made["before"] == 0
    assert kept["before"] == kept["version"] == made["version"] > 0


def test_a_server_that_is_not_there_is_one_line_without_the_password() -> None:
    dsn = f"postgres://u:secret@127.0.0.1:{free_port()}/x"
    for done in (dejaq("storage", "migrate", dsn), dejaq("serve", "--storage", dsn, "--listen", "127.0.0.1:0")):
        check(done, "STORE_FAILED", "cannot be reached", "postgres://u@127.0.0.1")
        assert "secret" not in done.err


def test_one_setting_makes_a_broker_on_postgres(tmp_path: Path) -> None:
    name = f"cli_{secrets.token_hex(4)}"

    async def serve() -> None:
        options = ["--storage", shared_server().dsn, "--cluster", name]
        async with BrokerProcess(tmp_path / "data", options=options) as broker:
            assert dejaq("topic", "create", "mail", url=broker.url).code == 0
            assert dejaq("produce", "mail", "--body", "hello", url=broker.url).code == 0
            assert dejaq("count", "mail", url=broker.url).out.strip().endswith("1")
            await broker.restart()
            assert dejaq("count", "mail", url=broker.url).out.strip().endswith("1")

    asyncio.run(serve())
