"""A worker with several tasks: a job that fails is released and comes again a little later.

Run it alone, or with DEJAQ_URL=dejaq://127.0.0.1:7400 against a broker of yours.
"""

import asyncio
import os
from contextlib import AsyncExitStack

import dejaq

JOBS = 20
TASKS = 4


async def handle(lease: dejaq.Lease) -> None:
    """The work; every fifth job fails at its first attempt. The lease is extended for as long as it takes."""
    await asyncio.sleep(0.01)
    if int(lease.body) % 5 == 0 and lease.attempts == 1:
        raise RuntimeError(f"job {lease.body.decode()} failed")


async def work(consumer: dejaq.Consumer, done: list[bytes]) -> None:
    async for lease in consumer:
        try:
            await handle(lease)
        except RuntimeError as error:
            print(f"{error}, attempt {lease.attempts}; again in 0.2 s")
            await lease.release(delay=0.2)
        else:
            await lease.delete()
            done.append(lease.body)


async def main() -> None:
    async with AsyncExitStack() as stack:
        target = os.environ.get("DEJAQ_URL") or await stack.enter_async_context(dejaq.Broker())
        client = await stack.enter_async_context(dejaq.connect(target))
        await client.create_topic("jobs", buckets=8)
        async with client.producer("jobs", group="examples") as producer:
            await asyncio.gather(*(producer.send(b"%d" % number) for number in range(JOBS)))

        done: list[bytes] = []
        # Each job is taken once, and the four that fail once more; then the consumer ends.
        async with client.consumer("jobs", name="worker-1", max_messages=JOBS + JOBS // 5) as consumer:
            await asyncio.gather(*(work(consumer, done) for _ in range(TASKS)))
        print(f"{len(done)} jobs done")


if __name__ == "__main__":
    asyncio.run(main())
