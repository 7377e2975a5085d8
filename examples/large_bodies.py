"""Bodies up to 64 MiB: sent and read like other bodies, or read in parts, so that memory never holds a whole body.

Run it alone, or with DEJAQ_URL=dejaq://127.0.0.1:7400 to use a broker of your own.
"""

import asyncio
import hashlib
import os
from contextlib import AsyncExitStack

import dejaq

VIDEO = os.urandom(5_000_000)


async def main() -> None:
    async with AsyncExitStack() as stack:
        target: str | dejaq.Broker = os.environ.get("DEJAQ_URL", "") or await stack.enter_async_context(dejaq.Broker())
        client = await stack.enter_async_context(dejaq.connect(target))
        await client.create_topic("videos", buckets=4, max_body_bytes=64 * 1024 * 1024, share_bodies=True)

        async with client.producer("videos", group="examples") as producer:
            await producer.send(VIDEO, id="first")
            # The broker has this body already: the SDK asks, and does not send it again.
            await producer.send(VIDEO, id="second")
            try:
                await producer.send(bytes(64 * 1024 * 1024 + 1), id="third")
            except dejaq.Refused as refused:
                print(f"the third is refused: {refused.code.name}")

        async with client.consumer("videos", name="viewer", max_messages=1) as consumer:
            async for lease in consumer:
                print(f"received {len(lease.body):,} bytes whole: {lease.body == VIDEO}")
                await lease.delete()

        async with client.consumer("videos", name="streamer", max_messages=1, fetch_large=False) as consumer:
            async for lease in consumer:
                digest, parts = hashlib.sha256(), 0
                async for part in lease.parts():
                    digest.update(part)
                    parts += 1
                same = digest.digest() == hashlib.sha256(VIDEO).digest()
                print(f"received {lease.size:,} bytes in {parts} parts: {same}")
                await lease.delete()


if __name__ == "__main__":
    asyncio.run(main())
