"""Dead letters: a message that fails too often, or is invalid, is kept with its history and can be sent back.

Run it alone, or with DEJAQ_URL=dejaq://127.0.0.1:7400 to use a broker of your own.
"""

import asyncio
import json
import os
from contextlib import AsyncExitStack

import dejaq


async def work(client: dejaq.Client, count: int) -> None:
    async with client.consumer("orders", max_messages=count) as consumer:
        async for lease in consumer:
            try:
                order = json.loads(lease.body)
            except ValueError as error:
                await lease.reject(f"not JSON: {error}")
                continue
            if order["price"] < 0:
                print(f"{lease.id}: attempt {lease.attempts} failed")
                await lease.release(delay=0.01)
            else:
                print(f"{lease.id}: shipped")
                await lease.delete()


async def main() -> None:
    async with AsyncExitStack() as stack:
        target: str | dejaq.Broker = os.environ.get("DEJAQ_URL", "") or await stack.enter_async_context(dejaq.Broker())
        client = await stack.enter_async_context(dejaq.connect(target))
        await client.create_topic("orders", buckets=4, max_attempts=2)
        letters = client.dead_letters("orders")

        async with client.producer("orders", group="examples") as producer:
            await producer.send(b"{", id="broken")
            await producer.send(b'{"price": -1}', id="negative")
            await producer.send(b'{"price": 5}', id="good")
        await work(client, 4)
        # The dead-letter topic is an ordinary topic; here the program watches it while the last attempt fails.
        async with client.consumer("orders"), client.consumer("orders.dead", max_messages=2) as dead:
            async for lease in dead:
                history = lease.headers
                print(f"dead: {lease.id}, {history['dejaq-dead-attempts']} attempts, {history['dejaq-dead-reason']}")
                await lease.release()

        back = await letters.redrive(["negative"])
        gone = await letters.purge()
        print(f"{back.done} sent back, {gone.done} removed, {await client.count('orders')} in the topic")
        async with client.producer("orders", group="examples") as producer:
            await producer.cancel("negative")


if __name__ == "__main__":
    asyncio.run(main())
