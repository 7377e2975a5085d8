"""Append payments to a log, total them exactly once with a group, and take a batch back.

Run it alone, or with DEJAQ_URL=dejaq://127.0.0.1:7400 to use a broker of your own.
"""

import asyncio
import os
from contextlib import AsyncExitStack

import dejaq

PAYMENTS = 40


async def main() -> None:
    async with AsyncExitStack() as stack:
        target: str | dejaq.Broker = os.environ.get("DEJAQ_URL", "") or await stack.enter_async_context(dejaq.Broker())
        client = await stack.enter_async_context(dejaq.connect(target))
        await client.create_topic("payments", kind="log", buckets=4)
        await client.create_topic("totals", kind="log", buckets=1, rollback_window=60)
        payments, totals = client.log("payments"), client.log("totals")

        # Payments of one account are in one bucket, in order.
        accounts = [b"account-%d" % (number % 4) for number in range(PAYMENTS)]
        await payments.append_batch([b"%d" % number for number in range(PAYMENTS)], keys=accounts)
        (alice,) = [one async for batch in payments.read() for one in batch if one.body == b"17"]
        print(f"payment 17 is of {alice.key.decode()}")

        # What a batch becomes and how far the group is are one transaction: a crash between them is impossible.
        seen = 0
        async with payments.group("totals") as member:
            async for batch in member.batches(5):
                async with client.transaction() as t:
                    t.append(totals, b"%d" % sum(map(int, batch.bodies)))
                    t.commit_offsets(member)
                seen += len(batch)
                if seen == PAYMENTS:
                    break
        total = sum([int(one.body) async for batch in totals.read() for one in batch])
        (group,) = await payments.groups()
        print(f"{seen} payments, total {total}, lag {group.lag}")

        # Within the window a batch can be taken back; readers wait for that, unless they ask for everything.
        (mistake,) = await totals.append_batch([b"-1"])
        await totals.rollback(mistake)
        (last,) = await totals.tail(1, uncommitted=True)
        print(f"the last total is {last.body.decode()}, rolled back: {last.aborted}")
        for topic in ("payments", "totals"):
            await client.delete_topic(topic)


if __name__ == "__main__":
    asyncio.run(main())
