"""The fastest use: send columns, receive batches.

Run it alone, or with DEJAQ_URL=dejaq://127.0.0.1:7400 to use a broker of your own.
"""

import asyncio
import os
import time
from contextlib import AsyncExitStack

import dejaq

COUNT = 20_000


async def main() -> None:
    async with AsyncExitStack() as stack:
        target: str | dejaq.Broker = os.environ.get("DEJAQ_URL", "") or await stack.enter_async_context(dejaq.Broker())
        client = await stack.enter_async_context(dejaq.connect(target))
        await client.create_topic("batches", buckets=16)

        async with client.producer("batches", group="examples") as producer:
            began = time.perf_counter()
            now = client.now_ms()
            results = await producer.send_batch(
                [b"message %d" % number for number in range(COUNT)],
                at=[now + number // 100 for number in range(COUNT)],
            )
            print(f"{len(results)} sent, {COUNT / (time.perf_counter() - began):,.0f} per second")

        async with client.consumer("batches", name="batches-1", max_messages=COUNT) as consumer:
            began = time.perf_counter()
            received = 0
            async for batch in consumer.batches(2_000):
                received += len(batch.bodies)
                await batch.delete()
            print(f"{received} received and deleted, {COUNT / (time.perf_counter() - began):,.0f} per second")


if __name__ == "__main__":
    asyncio.run(main())
