"""Owners change many messages at once: count first, then edit, move and cancel by filter.

Run it alone, or with DEJAQ_URL=dejaq://127.0.0.1:7400 to use a broker of your own.
"""

import asyncio
import os
from contextlib import AsyncExitStack

import dejaq
from dejaq import Where


async def main() -> None:
    async with AsyncExitStack() as stack:
        target: str | dejaq.Broker = os.environ.get("DEJAQ_URL", "") or await stack.enter_async_context(dejaq.Broker())
        client = await stack.enter_async_context(dejaq.connect(target))
        await client.create_topic("letters", buckets=4)

        async with client.producer("letters", group="examples") as producer:
            for campaign, count in (("spring", 30), ("summer", 12)):
                await producer.send_batch([b"Dear customer"] * count, delay=3600, headers={"campaign": campaign})

            spring = Where(headers={"campaign": "spring"})
            print(f"{await producer.count_where(spring)} letters would be changed")
            edited = await producer.edit_where(spring, body=b"Dear friend", priority=5)
            moved = await producer.move_where(Where(priorities=(5, 9)), shift=600)
            print(f"{edited.done} edited, {moved.done} moved by ten minutes")
            none = await producer.cancel_where(Where(headers={"campaign": "winter"}))
            gone = await producer.cancel_where(Where(), everything=True)
            print(f"{none.matched} of winter, {gone.done} cancelled, {await client.count('letters')} left")


if __name__ == "__main__":
    asyncio.run(main())
