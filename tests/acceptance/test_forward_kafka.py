"""`dejaq forward` from Kafka to a log and from the log to Kafka, killed at work: no record is lost or duplicated."""

from __future__ import annotations

import json
import random
import signal
import subprocess
from pathlib import Path

import dejaq
from dejaq.testing.servers.kafka import KafkaServer
from dejaq.testing.servers.process import BrokerProcess
from dejaq.testing.waiting import eventually
from tests.acceptance.process import DEJAQ, environment
from tests.integration.forward.records import KafkaTopic, Record

RECORDS = 2_000
KILLS = 2
WITHIN = 60.0


def start(broker: BrokerProcess, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [DEJAQ, "forward", *arguments, "--batch", "50", "--name", "forwarder", "--json"],
        env=environment(broker.url),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


async def test_kill_minus_nine_between_kafka_and_a_log_loses_and_duplicates_nothing(
    broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    name = f"{topic}-log"
    values = [b"%d" % n for n in range(RECORDS)]
    async with KafkaServer(tmp_path) as server, dejaq.connect(broker.url) as client:
        source, target = KafkaTopic(server.address, "source"), KafkaTopic(server.address, "target")
        await source.create()
        await target.create()
        await client.create_topic(name, kind="log", buckets=4)
        log = client.log(name)
        await source.write(Record(value, b"k%d" % (n % 20)) for n, value in enumerate(values))

        async def in_log() -> int:
            return sum(one.next for one in await log.offsets())

        async def forwarded() -> int:
            return sum(sum(group.committed.values()) for group in await log.groups())

        chance = random.Random(1)
        for arguments, there in (((source.url, name), in_log), ((name, target.url), forwarded)):
            for kill in range(1, KILLS + 1):
                process = start(broker, *arguments)
                least = RECORDS * kill // (KILLS + 2) + chance.randrange(100)

                async def enough(least: int = least, there=there) -> bool:  # type: ignore[no-untyped-def]
                    return bool(await there() >= least)

                await eventually(enough, within=WITHIN, what=f"{least} records are moved", poll=0.002)
                process.send_signal(signal.SIGKILL)
                process.communicate()
            last = start(broker, *arguments)

            async def all_there(there=there) -> bool:  # type: ignore[no-untyped-def]
                return bool(await there() >= RECORDS)

            await eventually(all_there, within=WITHIN, what="the other records are moved")
            last.send_signal(signal.SIGTERM)
            out, err = last.communicate(timeout=WITHIN)
            assert last.returncode == 0, err
            assert json.loads(out.splitlines()[-1])["refused"] == 0
        copied = [message async for batch in log.read() for message in batch]
        assert sorted(message.body for message in copied) == sorted(values)
        for key in {message.key for message in copied}:
            numbers = [int(message.body) for message in copied if message.key == key]
            assert numbers == sorted(numbers)
        arrived = await target.read()
        assert sorted(one.value or b"" for one in arrived) == sorted(values)
        for key in {message.key for message in copied}:
            numbers = [int(one.value or b"") for one in arrived if one.key == key]
            assert numbers == sorted(numbers)
