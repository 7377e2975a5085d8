"""Encryption at rest as a user meets it: through a broker, its files and the command. S5."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import dejaq
from dejaq.storage.encrypted.providers.listed import new_key_line

CANARY = b"canary-8c1f-plaintext"
SMALL, LARGE = CANARY + b" small", CANARY * 80_000


def keys(folder: Path, *names: str) -> Path:
    """A key file."""
    path = folder / "keys"
    path.touch(mode=0o600)
    path.write_text("\n".join(map(new_key_line, names)))
    return path


def files_with(needle: bytes, folder: Path) -> Iterator[Path]:
    """The files below a folder with these bytes."""
    return (path for path in folder.rglob("*") if path.is_file() and needle in path.read_bytes())


async def found(client: dejaq.Client, topic: str, message_id: str) -> dejaq.Message:
    """A message that exists."""
    (message,) = await client.get(topic, [message_id])
    assert message is not None
    return message


async def test_no_body_is_readable_in_the_files_of_a_broker(tmp_path: Path) -> None:
    """Small, large, shared and dead bodies, and headers, in store, log, journal and checkpoint; ids stay readable."""
    data, file = tmp_path / "data", keys(tmp_path, "k1")
    async with dejaq.Broker(data, encryption_keys=f"file:{file}") as broker, dejaq.connect(broker) as client:
        await client.create_topic("secret", encryption="bodies", max_attempts=1, max_body_bytes=8 * 1024 * 1024)
        await client.create_topic("shared", encryption="bodies", share_bodies=True)
        async with client.producer("secret") as producer:
            await producer.send(SMALL, id="readable-id", delay=3600, headers={"kind": CANARY.decode()})
            await producer.send(LARGE, id="large", delay=3600)
            await producer.send(SMALL, id="dead")
            await producer.send_batch([SMALL] * 100, delay=3600)
        async with client.producer("shared") as producer:
            await producer.send_batch([SMALL * 20] * 3, delay=3600)
            for message_id in ("named", "named-again"):
                await producer.send(SMALL * 3_000, id=message_id, delay=3600)
        async with client.consumer("secret") as consumer:
            lease = await consumer.take(1, timeout=30)
            assert [one.body for one in lease] == [SMALL]
            await lease[0].reject("broken")
        await client.create_topic("plain")
        with pytest.raises(dejaq.InvalidArgument, match="must have one encryption"):
            await client.dead_letters("secret").redrive(["dead"], to="plain")
        copy = await client.checkpoint()
        assert not list(files_with(CANARY, data))
        assert list(files_with(b"readable-id", data))
        assert not list(files_with(CANARY, Path(copy)))
        small = await found(client, "secret", "readable-id")
        assert (small.body, small.headers) == (SMALL, {"kind": CANARY.decode()})
        assert (await found(client, "secret", "large")).body == LARGE
        assert (await found(client, "secret.dead", "dead")).body == SMALL
        shared = {one.body async for page in client.browse("shared") for one in page}
        assert shared == {SMALL * 20, SMALL * 3_000}
    async with dejaq.Broker(data, encryption_keys=f"file:{file}") as broker, dejaq.connect(broker) as client:
        assert (await found(client, "secret", "readable-id")).body == SMALL
        assert (await found(client, "secret.dead", "dead")).body == SMALL
        assert (await found(client, "shared", "named")).body == SMALL * 3_000


async def test_a_broker_without_keys_refuses_encrypted_topics_and_serves_the_others(tmp_path: Path) -> None:
    data, file = tmp_path / "data", keys(tmp_path, "k1")
    async with dejaq.Broker(data, encryption_keys=f"file:{file}") as broker, dejaq.connect(broker) as client:
        await client.create_topic("secret", encryption="bodies")
        await client.create_topic("plain")
    async with dejaq.Broker(data) as broker, dejaq.connect(broker) as client:
        assert [topic.name for topic in await client.topics()] == ["plain", "secret"]
        with pytest.raises(dejaq.DejaqError) as caught:
            await client.get("secret", ["a"])
        assert caught.value.code is dejaq.Code.KEY_UNAVAILABLE
        with pytest.raises(dejaq.DejaqError) as caught:
            await client.create_topic("more", encryption="bodies")
        assert caught.value.code is dejaq.Code.INVALID_SETTING
        async with client.producer("plain") as producer:
            await producer.send(SMALL)
