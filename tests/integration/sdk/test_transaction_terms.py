"""The settings of a topic about bodies and rates also apply to transactions."""

from __future__ import annotations

import dejaq
from dejaq.errors import Code
from dejaq.testing.waiting import patient


async def test_bodies_are_compressed_as_the_topic_says() -> None:
    body = b"the same words " * 500
    async with dejaq.Broker() as broker, dejaq.connect(broker) as client:
        await client.create_topic("packed", buckets=4, compression="zstd")
        async with client.transaction(group="g") as t:
            t.send("packed", body, id="a")
            t.send("packed", b"small", id="b")
        async with client.transaction(group="g") as t:
            t.edit("packed", "b", body=body)
        async with client.consumer("packed", name="c") as consumer:
            for _ in range(2):
                lease = await anext(consumer)
                assert lease.body == body
                assert len(lease.raw_body) < len(body) // 10


async def test_a_client_above_its_rate_is_slowed_down() -> None:
    """G8: messages created by a transaction count like messages of a producer, and none of them is lost."""
    async with dejaq.Broker() as broker, dejaq.connect(broker, deadline=20) as client:
        await client.create_topic("bounded", buckets=4, client_rate=50)
        began = client.now_ms()
        for number in range(4):
            async with client.transaction() as t:
                for row in range(25):
                    t.send("bounded", b"x", id=f"{number}-{row}")
        assert client.now_ms() - began >= 400
        assert await client.count("bounded") == 100


async def test_a_client_that_cannot_wait_is_refused() -> None:
    """G8: the refusal is definite and nothing was changed; another client is not refused."""
    async with dejaq.Broker() as broker, dejaq.connect(broker, deadline=patient(0.3), name="hasty") as hasty:
        await hasty.create_topic("bounded", buckets=4, client_rate=10)
        async with hasty.transaction() as t:
            for row in range(50):
                t.send("bounded", b"x", id=f"a{row}")
        code = Code.OK
        try:
            async with hasty.transaction() as t:
                t.send("bounded", b"x", id="b")
        except dejaq.DejaqError as error:
            code = error.code
        assert code in (Code.NO_BROKER, Code.OVERLOADED)
        assert await hasty.get("bounded", ["b"]) == [None]
        async with dejaq.connect(broker, name="other") as other, other.transaction() as t:
            t.send("bounded", b"x", id="b")
