"""A worker calls a function for each message; a job that fails is delivered again a little later.

Run it alone, or with DEJAQ_URL=dejaq://127.0.0.1:7400 to use a broker of your own.
"""

import asyncio
import os
from contextlib import AsyncExitStack

import dejaq

JOBS = 20
RETRY = dejaq.Backoff.fixed(0.2, jitter=0.5)


async def main() -> None:
    async with AsyncExitStack() as stack:
        target: str | dejaq.Broker = os.environ.get("DEJAQ_URL", "") or await stack.enter_async_context(dejaq.Broker())
        client = await stack.enter_async_context(dejaq.connect(target))
        await client.create_topic("jobs", buckets=8)
        async with client.producer("jobs", group="examples") as producer:
            await asyncio.gather(*(producer.send(b"%d" % number) for number in range(JOBS)))

        # Every job is delivered once, and the four jobs that fail once more; then the worker ends. Without max_messages
        # it runs until `stop`; `await client.run_workers()` runs it until SIGTERM.
        @client.worker("jobs", concurrency=4, retry=RETRY, timeout=30, max_messages=JOBS + JOBS // 5)
        async def job(lease: dejaq.Lease) -> None:
            """The work; every fifth job fails at its first attempt. The lease is extended for as long as it takes."""
            await asyncio.sleep(0.01)
            if int(lease.body) % 5 == 0 and lease.attempts == 1:
                print(f"job {lease.body.decode()} fails, attempt {lease.attempts}; it is retried in 0.1 to 0.2 s")
                raise RuntimeError("not this time")

        await job.run()
        print(f"{job.stats.done} jobs done, {job.stats.failed} failed attempts")


if __name__ == "__main__":
    asyncio.run(main())
