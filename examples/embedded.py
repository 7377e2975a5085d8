"""A broker inside your own program: a durable schedule in a directory, without a server or a network.

With DEJAQ_URL=dejaq://127.0.0.1:7400 the same code uses a broker of your own instead.
"""

import asyncio
import os
import tempfile
from contextlib import AsyncExitStack

import dejaq


async def session(stack: AsyncExitStack, directory: str) -> dejaq.Client:
    """A client of the broker at DEJAQ_URL, or of a broker that runs in this process until the stack is closed."""
    target: str | dejaq.Broker = os.environ.get("DEJAQ_URL", "") or await stack.enter_async_context(
        dejaq.Broker(directory)
    )
    return await stack.enter_async_context(dejaq.connect(target))


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with AsyncExitStack() as stack:
            client = await session(stack, directory)
            await client.create_topic("schedule", buckets=4)
            async with client.producer("schedule", group="examples") as producer:
                await producer.send(b"written before the restart", delay=0.5)
        print("stopped; the message is on the disk")

        async with AsyncExitStack() as stack:
            client = await session(stack, directory)
            async with client.consumer("schedule", name="embedded-1", max_messages=1) as consumer:
                async for lease in consumer:
                    print(f"started again, received: {lease.body.decode()}")
                    await lease.delete()


if __name__ == "__main__":
    asyncio.run(main())
