"""Send a request through a queue and wait for the reply: the consumer replies and deletes in one transaction.

Run it alone, or with DEJAQ_URL=dejaq://127.0.0.1:7400 to use a broker of your own.
"""

import asyncio
import os
from contextlib import AsyncExitStack

import dejaq


async def square(client: dejaq.Client) -> None:
    async with client.consumer("reply-sums", name="calculator", max_messages=3) as consumer:
        async for lease in consumer:
            await lease.delete(reply=str(int(lease.body) ** 2).encode())


async def main() -> None:
    async with AsyncExitStack() as stack:
        target: str | dejaq.Broker = os.environ.get("DEJAQ_URL", "") or await stack.enter_async_context(dejaq.Broker())
        client = await stack.enter_async_context(dejaq.connect(target))
        await client.create_topic("reply-sums", buckets=4)
        working = asyncio.create_task(square(client))

        async with client.producer("reply-sums", group="pupils") as producer:
            replies = await asyncio.gather(*(producer.request(str(n).encode(), timeout=10) for n in (3, 4, 5)))
            print("squares:", ", ".join(reply.body.decode() for reply in replies))
            await working
            try:
                await producer.request(b"6", timeout=0.2)
            except dejaq.Indefinite as silence:
                print(f"nobody answers now: {silence.code.name}")

        for topic in ("reply-sums", "reply-sums.replies"):
            await client.delete_topic(topic)


if __name__ == "__main__":
    asyncio.run(main())
