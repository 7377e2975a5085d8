"""Create a store with a release, as its users do, for the test that later releases can open the store.

    python scripts/make_release_fixture.py tests/fixtures/release-0.1.0-rocksdb.tar.gz
    python scripts/make_release_fixture.py tests/fixtures/release-0.1.0-postgres.tar.gz

Run it with the code of that release. It uses only the public interface: a broker on the embedded store or on
PostgreSQL, and a client. The archive has the data directory of the broker, or a plain SQL dump of its schema, and
`expected.json`: the changes that the client made. The archive of a release is never created again.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import dejaq
from dejaq.testing.servers.postgres import PostgresServer, programs

LEASE_SECONDS = 6 * 3_600
LARGE = b"a large body of release 0.1.0, line after line\n" * 30_000
SHARED = b"the same body in several messages\n" * 1_500
CLUSTER = "released"
TOPICS: dict[str, dict[str, Any]] = {
    "orders": {"buckets": 4, "max_body_bytes": 4 * 1024 * 1024},
    "invoices": {"buckets": 2},
    "urgent": {"buckets": 2, "kind": "priority"},
    "work": {"buckets": 2, "max_attempts": 2, "expiry_backoff": "fixed:100ms"},
    "work.dead": {"buckets": 2},
    "shared": {"buckets": 2, "share_bodies": True, "max_body_bytes": 4 * 1024 * 1024},
    "packed": {"buckets": 1, "compression": "zstd"},
    "expiring": {"buckets": 1, "expires": True},
    "relaxed": {"buckets": 1, "durability": "relaxed", "max_lease": "5s"},
    "unrecorded": {"buckets": 1, "journal": False},
    "reports": {"buckets": 2, "kind": "cron"},
}


class Maker:
    """Uses a broker as its clients do, and records what its store must contain afterwards."""

    client: dejaq.Client
    stack: AsyncExitStack

    def __init__(self) -> None:
        self.topics: dict[str, Any] = {}
        self.messages: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in TOPICS}
        self.schedules: dict[str, dict[str, Any]] = {}
        self.held: dict[str, dict[str, int]] = {}

    async def make(self, broker: Callable[[], dejaq.Broker], save: Callable[[], Awaitable[None]]) -> dict[str, Any]:
        """Create every kind of record, with a restart of the broker in between; returns the required contents of the
        store.
        """
        for steps in (
            (self._topics, self._expired, self._held, self._owned),
            (self._transaction, self._urgent, self._dead, self._bodies, self._others, self._cron, save),
        ):
            async with AsyncExitStack() as self.stack:
                running = await self.stack.enter_async_context(broker())
                self.client = await self.stack.enter_async_context(dejaq.connect(running))
                for step in steps:
                    await step()
                now = self.client.now_ms()
        return {
            "now": now,
            "topics": self.topics,
            "messages": self.messages,
            "held": self.held,
            "schedules": self.schedules,
        }

    async def _topics(self) -> None:
        for name, settings in TOPICS.items():
            created = await self.client.create_topic(name, **settings)
            self.topics[name] = created.settings.as_dict()

    async def _send(self, topic: str, ids: list[str] | None, bodies: list[bytes], **more: Any) -> list[str]:
        """Create messages and record them."""
        group = more.pop("group", "billing")
        headers = more.get("headers") or [{}] * len(bodies)
        priorities = more.get("priorities") or [0] * len(bodies)
        now = self.client.now_ms()
        ts = [now + 1_000 * delay for delay in more.pop("delays", [0] * len(bodies))]
        async with self.client.producer(topic, group=group) as producer:
            results = await producer.send_batch(bodies, ids=ids, at=ts, **more)
        for row, message_id in enumerate(results.ids):
            self.messages[topic][message_id] = {
                "ts": ts[row],
                "body": digest(bodies[row]),
                "priority": priorities[row],
                "headers": dict(headers[row]),
                "group": group,
                "consumer": "",
                "attempts": 0,
            }
        return list(results.ids)

    async def _lease(self, topic: str, name: str, count: int, *, seconds: float = LEASE_SECONDS) -> list[dejaq.Lease]:
        """Lease the due messages and record them; a consumer with long leases stays open until the
        archive is written.
        """
        consumer = self.client.consumer(
            topic, name=name, lease=seconds, prefetch=0, max_messages=count, auto_extend=False
        )
        async with AsyncExitStack() as stack:
            await (self.stack if seconds == LEASE_SECONDS else stack).enter_async_context(consumer)
            leases: list[dejaq.Lease] = []
            while len(leases) < count:
                leases += await consumer.take(count - len(leases))
            await consumer.pause()
        for lease in leases:
            message = self.messages[topic][lease.id]
            message.update(ts=lease.expires_ms, consumer=name, attempts=message["attempts"] + 1)
        return leases

    async def _available(self, topic: str, count: int) -> None:
        """Wait until so many messages of a topic can be leased."""
        async with asyncio.timeout(30):
            while await self.client.count(topic, status="available") < count:
                await asyncio.sleep(0.05)

    async def _expired(self) -> None:
        """Leases that expired: their messages can be leased again."""
        await self._send("orders", [f"expired-{n}" for n in range(3)], [b"expired"] * 3)
        await self._lease("orders", "gone", 3, seconds=1)
        await self._available("orders", 3)

    async def _held(self) -> None:
        """Live leases; of each, one message is deleted, one released and one extended."""
        ids = [f"past-{n}" for n in range(6)]
        headers = [{"kind": "past", "row": str(row)} if row % 2 else {} for row in range(6)]
        bodies = [b"past %d" % n * n for n in range(6)]
        await self._send("orders", ids, bodies, headers=headers, priorities=[3 * (-1) ** n * n for n in range(6)])
        leases = await self._lease("orders", "holder", 9)
        by_id = {lease.id: lease for lease in leases}
        await by_id["past-0"].delete()
        del self.messages["orders"]["past-0"]
        at = self.client.now_ms() + 90_000_000
        await by_id["past-1"].release(at=at)
        self.messages["orders"]["past-1"].update(ts=at, consumer="")
        await by_id["past-2"].extend(2 * LEASE_SECONDS)
        # The broker's clock decides when an extended lease ends; the client's own time is an estimate.
        (extended,) = await self.client.get("orders", ["past-2"])
        assert extended is not None
        assert abs(extended.ts - by_id["past-2"].expires_ms) < 1_000
        self.messages["orders"]["past-2"]["ts"] = extended.ts
        left = [lease for lease in leases if lease.id not in ("past-0", "past-1")]
        self.held["holder"] = {lease.id: lease.version for lease in left}
        # An expired lease whose messages are not leased again: a later release must lease them to the next consumer.
        await self._send("orders", ["lost"], [b"lost"])
        await self._lease("orders", "gone", 1, seconds=1)
        await self._available("orders", 1)

    async def _owned(self) -> None:
        """Messages with generated and natural ids, and all changes that an owner can make."""
        bodies = [b"generated %d" % n for n in range(20)]
        generated = await self._send("orders", None, bodies, delays=[600 + 60 * n for n in range(20)])
        natural = [f"order:{n}" for n in range(10)]
        delays = [86_400 * n for n in range(1, 11)]
        await self._send("orders", natural, [b"order %d" % n for n in range(10)], delays=delays, group="shipping")
        messages = self.messages["orders"]
        async with self.client.producer("orders", group="billing") as producer:
            at = self.client.now_ms() + 7_000_000
            await producer.move([generated[0]], at=at)
            messages[generated[0]]["ts"] = at
            await producer.cancel(generated[5:7])
        async with self.client.producer("orders", group="shipping") as producer:
            await producer.edit("order:0", body=b"edited", priority=-9, headers={"edited": "yes"})
        messages["order:0"].update(body=digest(b"edited"), priority=-9, headers={"edited": "yes"})
        for message_id in generated[5:7]:
            del messages[message_id]

    async def _transaction(self) -> None:
        """A transaction over two topics, and one that is refused."""
        await self._send("invoices", ["invoice-old"], [b"old"], delays=[3_600])
        await self._send("invoices", ["due"], [b"due"])
        (due,) = await self._lease("invoices", "biller", 1)
        at = self.client.now_ms() + 5_000_000
        async with self.client.transaction(group="billing") as transaction:
            transaction.delete(due)
            sent = transaction.send("orders", b"in a transaction", id="by-transaction", at=at)
            transaction.move("invoices", "invoice-old", at=at)
        del self.messages["invoices"]["due"]
        self.messages["invoices"]["invoice-old"]["ts"] = at
        self.messages["orders"][sent] = new("billing", b"in a transaction", at)
        try:
            async with self.client.transaction(group="billing") as transaction:
                transaction.send("orders", b"never", id="never", at=at)
                transaction.cancel("invoices", "no such message")
        except dejaq.DejaqError:
            return
        raise AssertionError("the transaction was not refused")

    async def _urgent(self) -> None:
        """A priority topic, some of whose messages are leased."""
        priorities = [(37 * n) % 100 - 50 for n in range(200)]
        await self._send("urgent", [f"urgent-{n}" for n in range(200)], [b"urgent"] * 200, priorities=priorities)
        leases = await self._lease("urgent", "surgeon", 5)
        self.held["surgeon"] = {lease.id: lease.version for lease in leases}

    async def _dead(self) -> None:
        """Dead letters: one rejected, one leased too often."""
        await self._send("work", ["bad", "slow"], [b"bad", b"slow"])
        leases = {lease.id: lease for lease in await self._lease("work", "first", 2)}
        await leases["bad"].reject("the body makes no sense")
        await leases["slow"].release()
        await self._available("work", 1)
        await self._lease("work", "second", 1, seconds=1)
        await self._send("work", ["good"], [b"good"], delays=[3_600])
        consumer = self.client.consumer("work", name="third", prefetch=0)
        await self.stack.enter_async_context(consumer)
        async with asyncio.timeout(30):
            while await self.client.dead_letters("work").count() < 2:
                await asyncio.sleep(0.05)
        for message_id in ("bad", "slow"):
            dead = self.messages["work"].pop(message_id)
            self.messages["work.dead"][message_id] = {"body": dead["body"], "group": dead["group"]}

    async def _bodies(self) -> None:
        """Bodies that are large, shared and compressed."""
        await self._send("shared", [f"shared-{n}" for n in range(5)], [SHARED] * 5, delays=[3_600] * 5)
        await self._send("shared", ["large-1", "large-2"], [LARGE] * 2, delays=[3_600] * 2)
        await self._send("orders", ["large"], [LARGE], delays=[3_600])
        await self._send("packed", ["packed"], [SHARED], delays=[3_600])

    async def _others(self) -> None:
        """One message in each topic that has a special setting."""
        for topic in ("expiring", "relaxed", "unrecorded"):
            await self._send(topic, [f"{topic}-{n}" for n in range(2)], [b"x", b""], delays=[3_600, 7_200])

    async def _cron(self) -> None:
        """Schedules; of their occurrences only the ids are known."""
        cron = self.client.cron("reports")
        await cron.add("nightly", "30 2 * * *", "report of {date}", zone="Europe/Berlin", headers={"kind": "report"})
        await cron.add("weekly", "0 8 * * 1", "weekly", priority=4, missed="all", overlap="skip")
        await cron.add("paused", "@every 10m", "never")
        await cron.pause("paused")
        run = await cron.run("weekly")
        for name in ("nightly", "weekly", "paused"):
            found = await cron.get(name)
            assert found is not None
            self.schedules[name] = {
                "expression": found.expression,
                "zone": found.zone,
                "body": found.body,
                "paused": found.paused,
                "headers": dict(found.headers),
                "priority": found.priority,
                "missed": found.missed,
                "overlap": found.overlap,
                "last_id": run if name == "weekly" else "",
            }


def new(group: str, body: bytes, ts: int) -> dict[str, Any]:
    """A message that was never leased."""
    return {
        "ts": ts,
        "body": digest(body),
        "priority": 0,
        "headers": {},
        "group": group,
        "consumer": "",
        "attempts": 0,
    }


def digest(body: bytes) -> str:
    """The recorded form of a body."""
    return hashlib.sha256(body).hexdigest()


async def make_rocksdb(folder: Path) -> dict[str, Any]:
    """A data directory as a kill leaves it, at `folder/data`; returns its required contents."""

    async def save() -> None:
        await asyncio.to_thread(shutil.copytree, folder / "live", folder / "data")

    return await Maker().make(lambda: dejaq.Broker(folder / "live", drain_ms=0), save)


async def make_postgres(folder: Path) -> dict[str, Any]:
    """A dump of a schema while its broker works, at `folder/schema.sql`; returns its required contents."""
    with PostgresServer() as server:

        async def save() -> None:
            dump: list[str | Path] = [
                programs() / "pg_dump",
                "--no-owner",
                "--no-privileges",
                "--schema",
                CLUSTER,
                server.dsn,
            ]
            with (folder / "schema.sql").open("wb") as out:
                await asyncio.to_thread(lambda: subprocess.run(dump, stdout=out, check=True))

        expected = await Maker().make(lambda: dejaq.Broker(storage=server.dsn, cluster=CLUSTER, drain_ms=0), save)
    return expected | {"cluster": CLUSTER}


def pack(folder: Path, out: Path) -> None:
    """Write the archive, without logs that only contain times and places of its creation."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        name = Path(entry.name).name
        if name in {"LOG", "LOCK"} or name.startswith(("LOG.", "OPTIONS-")):
            return None
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = ""
        return entry

    with tarfile.open(out, "w:gz") as archive:
        for name in ("expected.json", "data", "schema.sql"):
            if (folder / name).exists():
                archive.add(folder / name, name, filter=plain)


def main() -> None:
    """Create and pack one archive."""
    out = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        make = make_postgres if "postgres" in out.name else make_rocksdb
        expected = asyncio.run(make(folder))
        (folder / "expected.json").write_text(json.dumps(expected, indent=1, sort_keys=True))
        pack(folder, out)
    print(f"{out}: {out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
