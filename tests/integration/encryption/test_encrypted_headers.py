"""Encrypted headers: nowhere readable at rest, and filters that work on what is stored. S5."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import dejaq
from dejaq import Where
from dejaq.domain.headers import decode_headers, encode_headers
from dejaq.storage.encrypted.body_cipher import TopicKey
from dejaq.storage.encrypted.header_cipher import UNREADABLE_NAMES, HeaderOpener, HeaderSealer
from tests.integration.encryption.test_encrypted_broker import files_with, found, keys

CANARY = "canary-51d7-header"
KEY = TopicKey(7, 0, b"k" * 32)


async def test_no_header_is_readable_in_the_files_of_a_broker_and_filters_still_find_it(tmp_path: Path) -> None:
    data, file = tmp_path / "data", keys(tmp_path, "k1")
    error = RuntimeError(f"{CANARY} failed")
    async with dejaq.Broker(data, encryption_keys=f"file:{file}") as broker, dejaq.connect(broker) as client:
        await client.create_topic("secret", encryption="bodies+headers", max_attempts=1)
        async with client.producer("secret") as producer:
            await producer.send(b"a", id="a", delay=3600, headers={"customer": CANARY, "region": "eu"})
            await producer.send(b"b", id="b", delay=3600, headers={"customer": "other"})
            await producer.send(b"c", id="c", headers={"customer": CANARY})
            assert await producer.edit("b", headers={"customer": CANARY, "note": CANARY}) is dejaq.Code.OK
            assert await producer.edit("a", headers={"region": None}) is dejaq.Code.OK
            async with client.consumer("secret") as consumer:
                (lease,) = await consumer.take(1, timeout=30)
                assert lease.headers == {"customer": CANARY}
                await lease.reject("broken", error=error)
            assert await producer.count_where(Where(headers={"customer": CANARY})) == 2
            assert await producer.count_where(Where(headers={"customer": "other"})) == 0
            moved = await producer.edit_where(Where(headers={"note": CANARY}), priority=3)
            assert moved.done == 1
        copy = await client.checkpoint()
        for folder in (data, Path(copy)):
            assert not list(files_with(CANARY.encode(), folder))
            assert not list(files_with(b"customer", folder))

        assert (await found(client, "secret", "a")).headers == {"customer": CANARY}
        assert (await found(client, "secret", "b")).headers == {"customer": CANARY, "note": CANARY}
        paged = [one.id async for page in client.browse("secret", headers={"note": CANARY}) for one in page]
        assert paged == ["b"]
        dead = await found(client, "secret.dead", "c")
        assert dead.headers["customer"] == CANARY
        assert CANARY in dead.headers["dejaq-dead-error"]
        assert await client.count("secret.dead", headers={"customer": CANARY}) == 1
        await client.dead_letters("secret").redrive(["c"])
        assert (await found(client, "secret", "c")).headers == {"customer": CANARY}


async def test_a_filter_of_dead_letters_whose_headers_were_sealed_one_by_one_has_only_headers_of_the_broker(
    tmp_path: Path,
) -> None:
    """Where a store does not seal its values by itself, these values are sealed with the keys of several topics."""
    file = keys(tmp_path, "k1")
    async with dejaq.Broker(encryption_keys=f"file:{file}") as broker, dejaq.connect(broker) as client:
        await client.create_topic("secret", encryption="bodies+headers")
        async with client.producer("secret") as producer, client.consumer("secret") as consumer:
            await producer.send(b"c", id="c", headers={"customer": CANARY})
            (lease,) = await consumer.take(1, timeout=30)
            await lease.reject("broken")
        assert await client.count("secret.dead", headers={"dejaq-dead-reason": "broken"}) == 1
        with pytest.raises(dejaq.DejaqError, match="only headers that begin with dejaq-dead-"):
            await client.count("secret.dead", headers={"customer": CANARY})


async def test_repeats_of_a_create_with_encrypted_headers_are_known(tmp_path: Path) -> None:
    file = keys(tmp_path, "k1")
    async with dejaq.Broker(encryption_keys=f"file:{file}") as broker, dejaq.connect(broker) as client:
        await client.create_topic("secret", encryption="bodies+headers")
        async with client.producer("secret") as producer:
            for _ in range(2):
                await producer.send(b"a", id="a", delay=3600, headers={"customer": CANARY})
            with pytest.raises(dejaq.DejaqError) as taken:
                await producer.send(b"a", id="a", delay=3600, headers={"customer": "other"})
            assert taken.value.code is dejaq.Code.ID_TAKEN


async def test_headers_as_large_as_the_limit_can_be_sent_and_edited(tmp_path: Path) -> None:
    """The limit counts what a client gave, not the longer sealed text."""
    file = keys(tmp_path, "k1")
    large = {f"name-{number:02}": "x" * 120 for number in range(32)}
    async with dejaq.Broker(encryption_keys=f"file:{file}") as broker, dejaq.connect(broker) as client:
        await client.create_topic("secret", encryption="bodies+headers")
        async with client.producer("secret") as producer:
            await producer.send(b"a", id="a", delay=3600, headers=large)
            assert await producer.edit("a", headers={"name-00": "y" * 120}) is dejaq.Code.OK
            with pytest.raises(dejaq.DejaqError, match="INVALID_HEADERS"):
                await producer.edit("a", headers={"name-00": "y" * 500})
        assert (await found(client, "secret", "a")).headers == {**large, "name-00": "y" * 120}


def opened(encoded: bytes) -> dict[str, str]:
    """The headers that a client gets for stored ones."""
    return decode_headers(HeaderOpener(lambda prefix: KEY).row(encoded))


def test_a_header_that_was_renamed_changed_or_written_in_plain_form_is_not_delivered() -> None:
    sealed = decode_headers(HeaderSealer(KEY).row(encode_headers({"pay": "1", "note": ""})))
    assert opened(encode_headers(sealed)) == {"pay": "1", "note": ""}
    for bad in (
        {"note": sealed["pay"]},
        {"note": sealed["pay"][:-4] + "AAA="},
        {"note": "dejaq-sealed:"},
        {"note": "plain"},
    ):
        assert opened(encode_headers({"pay": sealed["pay"], **bad})) == {"pay": "1", UNREADABLE_NAMES: "note"}


def test_equal_values_of_two_headers_or_two_topics_differ() -> None:
    other = HeaderSealer(replace(KEY, topic=8, secret=b"j" * 32))
    values = [HeaderSealer(KEY).value("a", "x"), HeaderSealer(KEY).value("b", "x"), other.value("a", "x")]
    assert len({text.removeprefix("dejaq-sealed:")[8:] for text in values}) == 3


async def test_the_headers_of_a_deleted_topics_dead_letters_are_named_and_not_shown(tmp_path: Path) -> None:
    file = keys(tmp_path, "k1")
    async with dejaq.Broker(encryption_keys=f"file:{file}") as broker, dejaq.connect(broker) as client:
        await client.create_topic("secret", encryption="bodies+headers")
        async with client.producer("secret") as producer, client.consumer("secret") as consumer:
            await producer.send(b"c", id="c", headers={"customer": CANARY})
            (lease,) = await consumer.take(1, timeout=30)
            await lease.reject("broken")
        await client.delete_topic("secret")
        dead = await found(client, "secret.dead", "c")
        assert CANARY not in str(dead.headers)
        assert dead.headers[UNREADABLE_NAMES] == "*"
        assert dead.headers["dejaq-dead-reason"] == "broken"
