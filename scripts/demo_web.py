"""Runs a broker with sample data that move, and `dejaq web` in front of it, until Ctrl-C."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import tempfile
from contextlib import suppress

import dejaq
from dejaq.errors import DejaqError

LISTEN = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7480"


TOPICS = ("invoices", "reminders", "orders")


async def main() -> None:
    """Start the broker, the clients and the gateway; SIGTERM ends them all."""
    running = asyncio.current_task()
    assert running is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    with tempfile.TemporaryDirectory() as folder:
        async with (
            dejaq.Broker(folder, listen="127.0.0.1:0", broker="demo") as broker,
            dejaq.connect(f"dejaq://{broker.address}", name="sample data") as client,
        ):
            await fill(client)
            work = [
                asyncio.ensure_future(one)
                for one in (produce(client), append(client), *(consume(client, name) for name in TOPICS))
            ]
            # The gateway is the command, in a process of its own, as users run it.
            gateway = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-c", "from dejaq.cli.main import main; main()"),
                *("web", "--listen", LISTEN, "--url", f"dejaq://{broker.address}", "--log-level", "warning"),
            )
            try:
                await gateway.wait()
            finally:
                for task in work:
                    task.cancel()
                await asyncio.gather(*work, return_exceptions=True)
                with suppress(ProcessLookupError):
                    gateway.terminate()
                await gateway.wait()


async def fill(client: dejaq.Client) -> None:
    """Topics with a past and a future."""
    chance = random.Random(1)
    for name in TOPICS:
        await client.create_topic(name, max_attempts=3)
    await client.create_topic("reports", kind="cron")
    await client.cron("reports").add("nightly", "30 2 * * *", "report of {date}", zone="Europe/Berlin")
    await client.cron("reports").add("heartbeat", "@every 30s", "beat {count}")
    await client.create_topic("clicks", kind="log", buckets=4)
    for name, days in (("invoices", 0.1), ("reminders", 400)):
        async with client.producer(name, group="billing") as producer:
            delays = [chance.random() ** 3 * days * 86_400 for _ in range(20_000)]
            bodies = [b'{"customer": %d}' % chance.randrange(900) for _ in delays]
            await producer.send_batch(bodies, delay=delays, headers={"kind": name})


async def produce(client: dejaq.Client) -> None:
    """Send orders that are due within minutes."""
    chance = random.Random(2)
    async with client.producer("orders", group="shop") as producer:
        while True:
            await producer.send(b'{"order": %d}' % chance.randrange(10**6), delay=chance.expovariate(1 / 60))
            await asyncio.sleep(chance.expovariate(5))


async def append(client: dejaq.Client) -> None:
    """Append clicks to a log, which a group reads with some lag."""
    chance = random.Random(4)
    log = client.log("clicks")
    async with log.group("dashboard", name="dashboard-1") as group:
        while True:
            pages = [
                b'{"page": "/%s"}' % chance.choice([b"", b"cart", b"offers"]) for _ in range(chance.randrange(1, 9))
            ]
            await log.append_batch(pages, keys=[b"user-%d" % chance.randrange(50) for _ in pages])
            await asyncio.sleep(chance.expovariate(2))
            if chance.random() < 0.3:
                await group.getmany(timeout=0.1)
                await group.commit()


async def consume(client: dejaq.Client, topic: str) -> None:
    """Process messages; some fail, and some take long."""
    chance = random.Random(topic)
    async with client.consumer(topic, name=f"{topic}-worker") as consumer:
        async for lease in consumer:
            with suppress(DejaqError):
                await asyncio.sleep(chance.expovariate(200))
                if chance.random() < 0.02:
                    await lease.reject("no such customer", error="the customer is unknown")
                elif chance.random() < 0.9:
                    await lease.delete()
                else:
                    await lease.release(delay=20)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt, asyncio.CancelledError):
        asyncio.run(main())
