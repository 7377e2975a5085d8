"""A forwarder moves due messages from a source to a topic, each exactly once; here the source is a class of our own.

Run it alone, or with DEJAQ_URL=dejaq://127.0.0.1:7400 to use a broker of your own.
"""

import asyncio
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack

import dejaq
from dejaq.forward import Parcel, forwarder


class Lines:
    """The smallest source: lines of a text; the number of a line is its id."""

    def __init__(self, text: str) -> None:
        self._left = [Parcel(id=f"line-{n}", body=line.encode()) for n, line in enumerate(text.splitlines(), start=1)]

    async def open(self) -> None: ...

    async def read(self, limit: int) -> Sequence[Parcel]:
        if not self._left:
            await asyncio.Event().wait()
        return self._left[:limit]

    async def ack(self, parcels: Sequence[Parcel]) -> None:
        self._left = [parcel for parcel in self._left if parcel not in parcels]

    async def reject(self, parcel: Parcel, reason: str) -> None:
        await self.ack([parcel])

    async def close(self) -> None: ...


async def main() -> None:
    async with AsyncExitStack() as stack:
        target: str | dejaq.Broker = os.environ.get("DEJAQ_URL", "") or await stack.enter_async_context(dejaq.Broker())
        client = await stack.enter_async_context(dejaq.connect(target))
        await client.create_topic("inbox", buckets=4)
        await client.create_topic("archive", buckets=4)

        await forwarder(client, Lines("one\ntwo\nthree"), "inbox").run(max_messages=3)
        print("in the inbox:", await client.count("inbox"))

        moving = forwarder(client, "inbox", "archive")
        await moving.run(idle=0.5)
        print(
            f"{moving.stats.moved} moved; inbox {await client.count('inbox')}, archive {await client.count('archive')}"
        )


if __name__ == "__main__":
    asyncio.run(main())
