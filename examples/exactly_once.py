"""Consume orders from one topic and create invoices in another, exactly once: both changes are one transaction.

Run it alone, or with DEJAQ_URL=dejaq://127.0.0.1:7400 to use a broker of your own.
"""

import asyncio
import os
from contextlib import AsyncExitStack

import dejaq

COUNT = 5


async def main() -> None:
    async with AsyncExitStack() as stack:
        target: str | dejaq.Broker = os.environ.get("DEJAQ_URL", "") or await stack.enter_async_context(dejaq.Broker())
        client = await stack.enter_async_context(dejaq.connect(target))
        for topic in ("once-orders", "once-invoices"):
            await client.create_topic(topic, buckets=4)

        async with client.transaction(group="shop") as t:
            for number in range(COUNT):
                t.send("once-orders", b"%d apples" % number, id=f"order-{number}")
        try:
            async with client.transaction(group="shop") as t:
                t.send("once-orders", b"pears", id="order-new")
                t.send("once-orders", b"plums", id="order-0")
        except dejaq.Conflict as refused:
            # The new order was not created either.
            print(f"the order is placed twice by mistake: {refused.code.name}")

        async with client.consumer("once-orders", name="invoicing", max_messages=COUNT) as consumer:
            async for lease in consumer:
                # If the lease is lost, or anything fails, neither change is made and the order is delivered again.
                async with client.transaction(group="shop") as t:
                    t.delete(lease)
                    t.send("once-invoices", b"pay for " + lease.body)

        left, made = await client.count("once-orders"), await client.count("once-invoices")
        print(f"{COUNT - left} orders became {made} invoices")
        for topic in ("once-orders", "once-invoices"):
            await client.delete_topic(topic)


if __name__ == "__main__":
    asyncio.run(main())
