"""An owner reads, moves, edits and cancels messages that are not due yet.

Run it alone, or with DEJAQ_URL=dejaq://127.0.0.1:7400 to use a broker of your own.
"""

import asyncio
import os
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta

import dejaq


async def main() -> None:
    async with AsyncExitStack() as stack:
        target: str | dejaq.Broker = os.environ.get("DEJAQ_URL", "") or await stack.enter_async_context(dejaq.Broker())
        client = await stack.enter_async_context(dejaq.connect(target))
        await client.create_topic("reminders", buckets=8)

        async with client.producer("reminders", group="examples") as producer:
            tomorrow = datetime.now(UTC) + timedelta(days=1)
            first = await producer.send(b"call Ada", at=tomorrow)
            second = await producer.send(b"call Alan", at=tomorrow)

            await producer.move([first], at=tomorrow + timedelta(hours=2))
            await producer.edit(first, body=b"write to Ada", priority=-1)
            results = await producer.cancel([second, "no-such-id"], results=True)
            for message_id, code in results.items():
                print(f"cancel {message_id}: {code.name}")

            for message in await client.get("reminders", [first, second]):
                print(message and f"{message.id}: {message.body.decode()!r}, {message.status(client.now_ms())}")
            hours = await client.histogram(
                "reminders", start=tomorrow - timedelta(hours=1), end=tomorrow + timedelta(hours=9), step=3600
            )
            print(f"{await client.count('reminders', status='waiting')} waiting, by the hour: {hours}")
            await producer.cancel(first)


if __name__ == "__main__":
    asyncio.run(main())
