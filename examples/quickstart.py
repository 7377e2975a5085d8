"""Send a message that is due in half a second, and receive it then.

Run it alone, or with DEJAQ_URL=dejaq://127.0.0.1:7400 to use a broker of your own.
"""

import asyncio
import os
import time
from contextlib import AsyncExitStack

import dejaq


async def main() -> None:
    async with AsyncExitStack() as stack:
        target: str | dejaq.Broker = os.environ.get("DEJAQ_URL", "") or await stack.enter_async_context(dejaq.Broker())
        client = await stack.enter_async_context(dejaq.connect(target))
        await client.create_topic("quickstart", buckets=8)

        async with client.producer("quickstart", group="examples") as producer:
            message_id = await producer.send(b"hello", delay=0.5)
            print(f"sent {message_id}")

        async with client.consumer("quickstart", name="quickstart-1", lease=30.0) as consumer:
            async for lease in consumer:
                late_ms = time.time() * 1000 - lease.ts
                print(f"received {lease.body!r}, due at {lease.at:%H:%M:%S.%f}, {late_ms:.1f} ms after its time")
                await lease.delete()
                break


if __name__ == "__main__":
    asyncio.run(main())
