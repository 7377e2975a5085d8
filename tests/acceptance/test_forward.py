"""`dejaq forward` as a process that is killed at work: no message is lost, and none is duplicated."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio as redis_client

import dejaq
from dejaq.testing.servers.process import BrokerProcess
from dejaq.testing.servers.redis import RedisServer
from dejaq.testing.waiting import eventually
from tests.acceptance.process import DEJAQ, environment
from tests.acceptance.process import dejaq as command

MESSAGES = 3_000
KILLS = 4
WITHIN = 30.0


def start(broker: BrokerProcess, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [DEJAQ, "forward", *arguments, "--batch", "50", "--name", "forwarder", "--json"],
        env=environment(broker.url),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("direction", ["redis to topic", "topic to redis", "topic to topic"])
async def test_kill_minus_nine_at_work_loses_and_duplicates_nothing(
    direction: str, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    """G4, G5: delivery is at least once, and the id identifies each repeat."""
    bodies = {f"m-{n}": b"%d" % n for n in range(MESSAGES)}
    async with (
        RedisServer(tmp_path) as server,
        dejaq.connect(broker.url) as client,
        redis_client.Redis.from_url(server.url) as redis,
    ):
        target = f"{topic}-target"
        await client.create_topic(target, buckets=4)
        stream = f"{server.url}/s"
        source, sink = {
            "redis to topic": (stream, target),
            "topic to redis": (topic, stream),
            "topic to topic": (topic, target),
        }[direction]
        if source == stream:
            pipe = redis.pipeline()
            for name, body in bodies.items():
                pipe.xadd("s", {"id": name, "body": body})
            await pipe.execute()
        else:
            async with client.producer(topic) as producer:
                assert (await producer.send_batch(list(bodies.values()), ids=list(bodies))).ok

        async def there() -> int:
            return await redis.xlen("s") if sink == stream else await client.count(target)

        chance = random.Random(direction)
        for kill in range(1, KILLS + 1):
            process = start(broker, source, sink)
            least = MESSAGES * kill // (KILLS + 2) + chance.randrange(100)

            async def enough(least: int = least) -> bool:
                return await there() >= least

            await eventually(enough, within=WITHIN, what=f"{least} messages are moved", poll=0.002)
            process.send_signal(signal.SIGKILL)
            process.communicate()
        last = start(broker, source, sink)

        async def all_there() -> bool:
            return await there() >= MESSAGES

        await eventually(all_there, within=WITHIN, what="the other messages are moved")
        last.send_signal(signal.SIGTERM)
        out, err = await asyncio.to_thread(last.communicate, timeout=WITHIN)
        assert last.returncode == 0, err
        assert json.loads(out.splitlines()[-1])["refused"] == 0
        if sink == stream:
            entries: Any = await redis.xrange("s")
            arrived = [(fields[b"id"].decode(), fields[b"body"]) for _, fields in entries]
        else:
            arrived = [(m.id, m.body) async for page in client.browse(target) for m in page]
        assert sorted(arrived) == sorted(bodies.items())


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("amqp://x/y", "mail"), 1, "'amqp' is no kind of queue"),
        (("mail", "mail"), 1, "to itself"),
        (("no-such-topic", "nor-this"), 1, "[TOPIC_NOT_FOUND]"),
        (("mail", "redis://127.0.0.1:6379"), 1, "is not redis://HOST:PORT/STREAM"),
        (("mail", "other", "--batch", "0"), 2, "0 is not in the range"),
    ],
)
def test_an_invalid_source_or_target_is_an_error_of_one_sentence(
    arguments: tuple[str, ...], code: int, says: str, broker: BrokerProcess
) -> None:
    done = command("forward", *arguments, url=broker.url)
    assert done.code == code
    assert says in done.err
    assert "Traceback" not in done.err
