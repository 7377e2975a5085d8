"""U24: a worker with a codec passes typed arguments to its function, and the returned value is the reply."""

from __future__ import annotations

import asyncio
import logging
import threading
from dataclasses import dataclass
from typing import Any

import pydantic
import pytest

import dejaq
import dejaq.sync
from dejaq.domain import dead_letter
from dejaq.sdk.working.codecs import CodecName
from dejaq.testing.waiting import eventually
from tests.integration.sdk.conftest import TOPIC

WITHIN = 10.0


@dataclass
class Order:
    id: int
    price: float = 1.0


class Receipt(pydantic.BaseModel):
    order: int
    paid: float


async def dead_letters(client: dejaq.Client, count: int) -> list[dejaq.Message]:
    async def there() -> bool:
        return await client.dead_letters(TOPIC).count() == count

    await eventually(there, within=WITHIN)
    return [message async for page in client.dead_letters(TOPIC).browse() for message in page]


@pytest.mark.parametrize(("name", "codec"), [("json", dejaq.JSON), ("msgpack", dejaq.MSGPACK)])
async def test_a_request_is_answered_with_the_returned_value(
    client: dejaq.Client, producer: dejaq.Producer, name: CodecName, codec: dejaq.Codec
) -> None:
    @client.worker(TOPIC, codec=name, prefetch=0)
    async def pay(order: Order) -> Receipt:
        return Receipt(order=order.id, paid=order.price)

    async with pay.running():
        reply = await producer.request(codec.encode(Order(7, 2.5)))
    assert codec.decode(reply.body, Receipt) == Receipt(order=7, paid=2.5)
    assert await pay(Order(3)) == Receipt(order=3, paid=1.0), "a test calls the function itself"
    assert (pay.stats.done, pay.stats.failed) == (1, 0)


async def test_a_blocking_function_gets_the_typed_body_and_the_lease(
    client: dejaq.Client, producer: dejaq.Producer
) -> None:
    seen: list[tuple[int, str, bool]] = []

    @client.worker(TOPIC, codec="json", prefetch=0)
    def pay(order: Order, lease: dejaq.sync.Lease) -> int:
        lease.extend(60)
        seen.append((order.id, lease.id, threading.current_thread() is threading.main_thread()))
        return order.id + 1

    async with pay.running():
        reply = await producer.request(b'{"id": 7}', id="o7")
        await producer.send(b'{"id": 8}', id="o8")
        await eventually(lambda: pay.stats.done == 2, within=WITHIN)
    assert reply.body == b"8"
    assert seen == [(7, "o7", False), (8, "o8", False)]


async def test_a_body_that_does_not_decode_goes_to_the_dead_letters(
    client: dejaq.Client, producer: dejaq.Producer, caplog: pytest.LogCaptureFixture
) -> None:
    """U24: such a message was delivered again without end."""

    @client.worker(TOPIC, codec="json", prefetch=0)
    async def pay(order: Order) -> None:
        """Take it."""

    with caplog.at_level(logging.WARNING, logger="dejaq.worker"):
        async with pay.running():
            await producer.send_batch([b"{", b'{"id": "seven"}', b'{"id": 7}'], ids=["cut", "odd", "good"])
            letters = {letter.id: letter.headers for letter in await dead_letters(client, 2)}
            await eventually(lambda: pay.stats.done == 1, within=WITHIN)
    assert {headers[dead_letter.REASON] for headers in letters.values()} == {"undecodable"}
    assert letters["odd"][dead_letter.ERROR] == "ValidationError: Expected `int`, got `str` - at `$.id`"
    assert "rejected" in caplog.text
    assert (pay.stats.rejected, pay.stats.failed) == (2, 0)


async def test_a_result_that_cannot_be_encoded_goes_to_the_dead_letters(
    client: dejaq.Client, producer: dejaq.Producer
) -> None:
    @client.worker(TOPIC, codec="json", prefetch=0)
    async def pay(order: Order) -> object:
        return object()

    async with pay.running():
        asking = asyncio.ensure_future(producer.request(b'{"id": 7}', timeout=0.2))
        (letter,) = await dead_letters(client, 1)
        asking.cancel()
        await asyncio.wait({asking})
    assert letter.headers[dead_letter.REASON] == "unencodable"


async def test_a_function_may_reject_its_message(client: dejaq.Client, producer: dejaq.Producer) -> None:
    """U24: the reason of the failure is kept with the dead letter."""

    @client.worker(TOPIC, prefetch=0)
    async def pay(lease: dejaq.Lease) -> None:
        try:
            raise KeyError("customer")
        except KeyError as error:
            raise dejaq.Reject("no such customer") from error

    async with pay.running():
        await producer.send(b"x")
        (letter,) = await dead_letters(client, 1)
    assert letter.headers[dead_letter.REASON] == "no such customer"
    assert letter.headers[dead_letter.ERROR] == "KeyError: 'customer'"
    assert pay.stats.rejected == 1


def no_annotation(order): ...  # type: ignore[no-untyped-def]
def no_argument() -> None: ...
def too_many(order: Order, lease: Any, more: Any) -> None: ...
def only_by_name(*, order: Order) -> None: ...
def unknown_name(order: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def unknown_type(order: threading.Thread) -> None: ...


@pytest.mark.parametrize(
    "function",
    [no_annotation, no_argument, too_many, only_by_name, unknown_name, unknown_type],
    ids=lambda one: one.__name__,
)
async def test_a_function_without_usable_annotations_is_refused(client: dejaq.Client, function: Any) -> None:
    with pytest.raises(dejaq.InvalidArgument, match=function.__name__):
        client.worker(TOPIC, codec="json")(function)


async def test_a_codec_of_the_user_is_called_with_the_annotated_type(
    client: dejaq.Client, producer: dejaq.Producer
) -> None:
    class Text:
        def encode(self, value: object) -> bytes:
            return str(value).encode()

        def decode(self, body: bytes, kind: type[Any]) -> Any:
            return kind(body.decode())

    @client.worker(TOPIC, codec=Text(), prefetch=0)
    async def double(number: int) -> int:
        return 2 * number

    async with double.running():
        assert (await producer.request(b"21")).body == b"42"
