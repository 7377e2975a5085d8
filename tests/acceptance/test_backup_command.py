"""`dejaq backup` and `dejaq restore`, with a working broker and without one."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

import dejaq as sdk
from dejaq.testing.servers.process import BrokerProcess
from dejaq.testing.waiting import eventually
from tests.acceptance.process import dejaq


async def command(*arguments: str | Path, url: str = "dejaq://127.0.0.1:1") -> dict[str, object]:
    """Run a command that must succeed, and return the one object that it prints."""
    done = await asyncio.to_thread(dejaq, *map(str, arguments), "--json", url=url)
    assert done.code == 0, done.err
    (result,) = done.objects
    return result


async def refused(*arguments: str | Path, url: str = "dejaq://127.0.0.1:1") -> tuple[int, str]:
    done = await asyncio.to_thread(dejaq, *map(str, arguments), url=url)
    assert done.code != 0, done.out
    return done.code, done.err


async def ids_of(client: sdk.Client, topic: str = "mail") -> set[str]:
    return {message.id async for page in client.browse(topic) for message in page}


async def filled(broker: BrokerProcess, names: list[str]) -> None:
    async with sdk.connect(broker.url) as client:
        await client.create_topic("mail", buckets=4)
        async with client.producer("mail") as producer:
            results = await producer.send_batch([b"x" * 5_000] * len(names), ids=names, delay=3_600)
            results.raise_for_failures()


async def test_messages_acknowledged_before_a_backup_under_load_are_restored(tmp_path: Path) -> None:
    """G1, G3: the restored store also has its leases; a lease granted after the backup is void there."""
    data, place = tmp_path / "data", tmp_path / "backups"
    async with BrokerProcess(data) as broker:
        async with sdk.connect(broker.url, deadline=20) as client:
            await client.create_topic("mail", buckets=4)
            await client.create_topic("reports", buckets=1, kind="cron")
            await client.cron("reports").add("nightly", "30 2 * * *", "report")
            acknowledged: list[str] = []
            stop = asyncio.Event()

            async def load() -> None:
                async with client.producer("mail") as producer:
                    while not stop.is_set():
                        names = [f"m-{len(acknowledged) + n}" for n in range(100)]
                        (await producer.send_batch([b"x" * 200] * 100, ids=names, delay=3_600)).raise_for_failures()
                        acknowledged.extend(names)

            loading = asyncio.create_task(load())
            async with (
                client.producer("mail") as producer,
                client.consumer("mail", name="before", lease=3_000, max_messages=1) as consumer,
            ):
                await producer.send(b"held", id="held")
                held = await anext(consumer)
                await eventually(lambda: len(acknowledged) >= 2_000, within=20, what="the load has started")
                before = set(acknowledged)
                result = await command("backup", place, url=broker.url)
                assert len(acknowledged) > len(before), "nothing was sent during the backup"
                late = client.consumer("mail", name="late", lease=3_000, max_messages=1)
                await late.open()
                await producer.send(b"x", id="late")
                lost = await anext(late)
                stop.set()
                await loading
                broker.kill()
                shutil.rmtree(data)
                await command("restore", place, data)
                await broker.restart()
                there = await ids_of(client)
                assert before | {"held"} <= there
                assert there <= {*acknowledged, "held"}
                assert [schedule.name async for schedule in client.cron("reports").all()] == ["nightly"]
                await held.delete()
                with pytest.raises(sdk.DejaqError):
                    await lost.delete()
                await producer.send(b"x", id="late")
                async with client.consumer("mail", name="again", lease=3_000, max_messages=1) as last:
                    again = await anext(last)
                assert (again.id, again.version > lost.version) == ("late", True)
        assert not list(data.glob("checkpoint-*"))
        verified = await asyncio.to_thread(dejaq, "audit", "verify", str(data / "journal"))
        assert verified.code == 0, verified.err
    assert result["files"]


async def test_a_later_backup_copies_only_new_files_and_is_complete_by_itself(tmp_path: Path) -> None:
    data, place = tmp_path / "data", tmp_path / "backups"
    async with BrokerProcess(data) as broker:
        await filled(broker, [f"m-{n}" for n in range(1_000)])
        first = await command("backup", place, url=broker.url)
        await filled(broker, ["one-more"])
        second = await command("backup", place, url=broker.url)
    assert first["copied_bytes"] == first["bytes"]
    assert isinstance(second["copied_bytes"], int)
    assert isinstance(second["bytes"], int)
    assert second["copied_bytes"] < second["bytes"] / 2
    shutil.rmtree(str(first["backup"]))
    await command("restore", place, "--check")
    await command("restore", place, tmp_path / "restored")
    async with BrokerProcess(tmp_path / "restored") as broker, sdk.connect(broker.url) as client:
        assert await client.count("mail") == 1_001


async def test_damage_of_a_backup_is_found_before_a_broker_starts_on_it(tmp_path: Path) -> None:
    data, place = tmp_path / "data", tmp_path / "backups"
    async with BrokerProcess(data) as broker:
        await filled(broker, ["a", "b"])
        made = Path(str((await command("backup", place, url=broker.url))["backup"]))
    table = max(made.rglob("*.sst"), key=lambda path: path.stat().st_size)
    whole = table.read_bytes()
    table.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    for arguments in (("restore", place, "--check"), ("restore", place, tmp_path / "restored")):
        code, err = await refused(*arguments)
        assert (code, "STORE_CORRUPT" in err, table.name in err) == (5, True, True)
    table.unlink()
    _, err = await refused("restore", place, "--check")
    assert "it is gone" in err
    table.write_bytes(whole)
    manifest = made / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"bytes": ', '"bytes": 1'))
    _, err = await refused("restore", place, "--check")
    assert "STORE_CORRUPT" in err
    manifest.unlink()
    _, err = await refused("restore", place, "--check")
    assert "there is no whole backup" in err


async def test_a_restore_refuses_a_directory_that_is_not_empty(tmp_path: Path) -> None:
    data, place = tmp_path / "data", tmp_path / "backups"
    async with BrokerProcess(data) as broker:
        await filled(broker, ["a"])
        code, err = await refused("backup", place, "--data", data, url=broker.url)
        assert (code, "STORE_LOCKED" in err) == (1, True)
        broker.terminate()
        await broker.exited()
    # No broker runs here, so the command makes the backup itself.
    await command("backup", place, "--data", data)
    code, err = await refused("restore", place, data)
    assert (code, "not empty" in err) == (1, True)
    async with BrokerProcess(data) as broker, sdk.connect(broker.url) as client:
        assert await ids_of(client) == {"a"}


async def test_a_backup_of_a_store_without_a_directory_is_refused_with_the_next_step(tmp_path: Path) -> None:
    async with BrokerProcess() as broker:
        _, err = await refused("backup", tmp_path / "backups", url=broker.url)
    assert "in memory only" in err
    assert not (tmp_path / "backups").exists()
