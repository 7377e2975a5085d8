"""A schedule in a time zone whose occurrences are ordinary messages.

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
        await client.create_topic("cron-reports", kind="cron", buckets=4)
        cron = client.cron("cron-reports")

        await cron.add("nightly", "30 2 * * *", "report of {date}", zone="Europe/Berlin", missed="last")
        await cron.add("pulse", "@every 1s", "{name} number {count}", overlap="skip")
        try:
            await cron.add("never", "0 0 31 2 *")
        except dejaq.InvalidArgument as refused:
            print(f"31 February: {refused.code.name}")

        async with client.consumer("cron-reports", name="cron-1", max_messages=2) as consumer:
            async for lease in consumer:
                print(f"received {lease.body.decode()!r}")
                await lease.delete()

        await cron.pause("pulse")
        made = await cron.run("nightly")
        print(f"run by hand: {made.startswith('nightly:run-')}")
        print("schedules:", ", ".join(sorted([info.name async for info in cron.all()])))
        await client.delete_topic("cron-reports")


if __name__ == "__main__":
    asyncio.run(main())
