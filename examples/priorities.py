"""A priority topic: the most urgent message is delivered first, also when it is sent last.

Run it alone, or with DEJAQ_URL=dejaq://127.0.0.1:7400 to use a broker of your own.
"""

import asyncio
import os
from contextlib import AsyncExitStack

import dejaq


async def main() -> None:
    async with AsyncExitStack() as stack:
        target: str | dejaq.Broker = os.environ.get("DEJAQ_URL", "") or await stack.enter_async_context(dejaq.Broker())
        client = await stack.enter_async_context(dejaq.connect(target))
        await client.create_topic("tickets", buckets=4, kind="priority")

        async with client.producer("tickets", group="examples") as producer:
            await producer.send_batch(
                [b"a typo", b"a slow page", b"a wrong price"], ids=["typo", "slow", "price"], priorities=[30, 20, 10]
            )
            await producer.edit("typo", priority=5)

            async with client.consumer("tickets", max_in_flight=1, max_messages=5) as consumer:
                async for lease in consumer:
                    print(f"{lease.id}, priority {lease.priority}, attempt {lease.attempts}")
                    if lease.id == "typo":
                        await producer.send(b"the shop is down", id="down", priority=-10)
                    if lease.id == "price" and lease.attempts == 1:
                        await lease.release()
                        continue
                    await lease.delete()


if __name__ == "__main__":
    asyncio.run(main())
