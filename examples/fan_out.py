"""Send one message to several topics under one id: to all of them or to none, and a repeat creates no second message.

Run it alone, or with DEJAQ_URL=dejaq://127.0.0.1:7400 to use a broker of your own.
"""

import asyncio
import os
from contextlib import AsyncExitStack

import dejaq

TOPICS = ["fan-mail", "fan-audit", "fan-statistics"]


async def main() -> None:
    async with AsyncExitStack() as stack:
        target: str | dejaq.Broker = os.environ.get("DEJAQ_URL", "") or await stack.enter_async_context(dejaq.Broker())
        client = await stack.enter_async_context(dejaq.connect(target))
        for topic in TOPICS:
            await client.create_topic(topic, buckets=4)

        try:
            await client.fan_out([*TOPICS, "no-such-topic"], b"order 17 is paid")
        except dejaq.Missing as refused:
            print(f"nothing was sent: {refused.code.name}")
        sent = await client.fan_out(TOPICS, b"order 17 is paid", delay=0.2)

        for topic in TOPICS:
            async with client.consumer(topic, name="fan-1", max_messages=1) as consumer:
                async for lease in consumer:
                    print(f"{topic} received {lease.body!r}, the same id: {lease.id == sent.id}")
                    await lease.delete()


if __name__ == "__main__":
    asyncio.run(main())
