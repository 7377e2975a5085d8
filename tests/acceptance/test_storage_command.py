"""`dejaq storage migrate` and `dejaq serve --storage`, as a user runs them."""

from __future__ import annotations

import asyncio
import json
import secrets
import shutil
from pathlib import Path
from typing import Any

import dejaq as sdk
from dejaq.testing.servers.postgres import shared_server
from dejaq.testing.servers.process import BrokerProcess, free_port
from dejaq.testing.waiting import eventually
from tests.acceptance.process import dejaq
from tests.acceptance.test_serve_errors import check


def test_a_schema_is_created_once_and_then_up_to_date() -> None:
    name = f"cli_{secrets.token_hex(4)}"
    first, second = [dejaq("storage", "migrate", shared_server().dsn, "--cluster", name, "--json") for _ in range(2)]
    assert (first.code, second.code) == (0, 0)
    made, kept = first.objects[0], second.objects[0]
    assert made["before"] == 0
    assert kept["before"] == kept["version"] == made["version"] > 0


def test_an_unreachable_server_is_an_error_of_one_line_without_the_password() -> None:
    dsn = f"postgres://u:secret@127.0.0.1:{free_port()}/x"
    for done in (dejaq("storage", "migrate", dsn), dejaq("serve", "--storage", dsn, "--listen", "127.0.0.1:0")):
        check(done, "STORE_FAILED", "cannot be reached", "postgres://u@127.0.0.1")
        assert "secret" not in done.err


def test_one_setting_puts_a_broker_on_postgresql(tmp_path: Path) -> None:
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


async def test_the_outbox_of_a_broker_that_lost_its_directory_is_found_and_exported(tmp_path: Path) -> None:
    """G9: records that a broker did not export survive the loss of its directory and can be exported."""
    dsn, cluster, data = shared_server().dsn, f"outbox_{secrets.token_hex(4)}", tmp_path / "data"
    late = {"DEJAQ_JOURNAL_INTERVAL_MS": "3600000"}
    options = ["--cluster", cluster, "--data", str(data)]
    async with BrokerProcess(storage=dsn, options=options, env=late) as broker, sdk.connect(broker.url) as client:
        await client.create_topic("mail", buckets=4)
        async with client.producer("mail") as producer:
            assert (await producer.send_batch([b"x"] * 50, delay=3_600)).ok
        broker.kill()
    lost = (data / "outbox").read_text().strip()
    shutil.rmtree(data)
    async with BrokerProcess(storage=dsn, options=options):
        found = {row["outbox"]: row["waiting"] for row in outboxes_of(dsn, cluster)}
        assert found[lost] > 0
    shutil.rmtree(data)
    data.mkdir()
    (data / "outbox").write_text(f"{lost}\n")
    async with BrokerProcess(storage=dsn, options=options):
        await eventually(
            lambda: outboxes_of(dsn, cluster)[0]["waiting"] == 0, within=20, what="the outbox is exported", poll=0.2
        )
    done = dejaq("audit", "verify", str(data / "journal"), "--json")
    assert done.code == 0, done.err
    assert sum(json.loads(path.read_text())["events"] for path in (data / "journal").glob("*.json")) == 50


def outboxes_of(dsn: str, cluster: str) -> list[dict[str, Any]]:
    done = dejaq("storage", "outboxes", dsn, "--cluster", cluster, "--json")
    assert done.code == 0, done.err
    return sorted(done.objects, key=lambda row: -int(row["waiting"]))
