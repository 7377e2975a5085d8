"""The embedded store: the storage contract on RocksDB."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar
from weakref import WeakSet

from dejaq import limits
from dejaq.domain.batch import CreateBatch, Deletion, LeaseRequest, LeaseSet, Outcomes, RowRange
from dejaq.domain.headers import encode_headers
from dejaq.domain.message import Message
from dejaq.domain.topic import Durability, Topic, TopicState
from dejaq.domain.topic_record import read_topic, write_topic
from dejaq.errors import Code, DejaqError, StoreError, error_of
from dejaq.storage.base import Capabilities, Edits, Filter, Holder, Page, outermost
from dejaq.storage.outbox import Outbox
from dejaq.storage.rocksdb import creating, dying, keys, leasing, owning, prioritising, querying, settling, stepping
from dejaq.storage.rocksdb.committer import Committer
from dejaq.storage.rocksdb.database import Batch, Database, new_batch
from dejaq.storage.rocksdb.image import Image
from dejaq.storage.rocksdb.journalling import extent, records_behind, trim
from dejaq.storage.rocksdb.large import LargeBodies
from dejaq.storage.rocksdb.prioritising import PriorityImage
from dejaq.storage.rocksdb.scanning import RocksSnapshot
from dejaq.storage.rocksdb.seen import Seen
from dejaq.storage.rocksdb.uploading import RocksBodies
from dejaq.storage.rocksdb.watermark import Mark, Watermark, check_manifest, manifest_of
from dejaq.storage.rocksdb.window import Budget
from dejaq.storage.steps import Transaction, Verdict

Result = TypeVar("Result")

FORMAT = 4
_FORMAT, _BOOT, _TOPICS = keys.META + b"format", keys.META + b"boot", keys.META + b"topics"
# The names of transactions are kept like those of batches, under the number that no topic has.
_OF_NO_TOPIC = 0
# The low bits count within one start of the store, the high bits count the starts.
_COUNTER_BITS = 40
_FORGET_EVERY_MS = 3_600_000
# How many messages are looked at in one go for the few that match.
_NARROW_STEP = 500


class RocksStorage:
    """Topics and messages in one directory, which one process holds."""

    def __init__(
        self,
        path: Path,
        *,
        window_bytes: int = limits.WINDOW_BYTES_DEFAULT,
        young_ids: int = limits.YOUNG_IDS_MAX,
        journal: bool = False,
    ) -> None:
        self._path = path
        self._journal = journal
        self._window_bytes, self._young_ids = window_bytes, young_ids
        self._failure: str | None = "the store is not open"
        self._images: dict[int, Image] = {}
        # A snapshot that nobody holds any more is gone, and its view with it.
        self._snapshots: WeakSet[RocksSnapshot] = WeakSet()
        self._number = 0
        self._forgot_at = 0

    @property
    def capabilities(self) -> Capabilities:
        """Durable, and for one process."""
        return Capabilities(name="rocksdb", durable=True, shared=False, shares_bodies=True)

    # Life

    async def open(self, now: int) -> None:
        """Take the directory, making it when it is not there."""
        database_path, watermark = self._path / "db", Watermark(self._path / "watermark")
        fresh = not (database_path / "CURRENT").exists()
        mark = watermark.read() if self._path.is_dir() else None
        if fresh != (mark is None):
            missing = "its database" if fresh else "its watermark"
            raise error_of(Code.STORE_CORRUPT, f"{self._path} has lost {missing}; restore the directory from a backup")
        try:
            database_path.mkdir(parents=True, exist_ok=True)
        except OSError as cause:
            raise error_of(Code.STORE_FAILED, f"cannot make {self._path}", details=str(cause)) from None
        if mark is not None:
            check_manifest(database_path, mark)
        database = Database(database_path)
        try:
            self._start(database, watermark, mark)
        except BaseException as cause:
            self._images.clear()
            database.close()
            if isinstance(cause, Exception) and not isinstance(cause, DejaqError):
                raise error_of(
                    Code.STORE_CORRUPT,
                    f"{self._path} has damaged records; restore it from a backup",
                    details=repr(cause),
                ) from None
            raise
        self._forgot_at = now - _FORGET_EVERY_MS

    def _start(self, database: Database, watermark: Watermark, mark: Mark | None) -> None:
        if mark is not None and database.sequence < mark.sequence:
            raise error_of(
                Code.STORE_CORRUPT,
                f"the log in {self._path} ends before what was acknowledged; restore it from a backup",
                details=f"last write {database.sequence}, acknowledged {mark.sequence}",
            )
        version = database.get(_FORMAT)
        if version is not None and int(version) > FORMAT:
            raise error_of(
                Code.STORE_NEWER, f"{self._path} has format {int(version)}; this release reads up to {FORMAT}"
            )
        boot = int(database.get(_BOOT) or b"0") + 1
        batch = new_batch()
        batch.put(_FORMAT, str(FORMAT).encode())
        batch.put(_BOOT, str(boot).encode())
        try:
            database.write(batch)
            database.sync()
            watermark.write(Mark(database.sequence, *manifest_of(database.path)))
        except Exception as cause:  # noqa: BLE001  rocksdict raises plain Exception
            raise error_of(Code.STORE_FAILED, f"cannot write to {self._path}", details=str(cause)) from None
        self._database = database
        self._number = boot << _COUNTER_BITS
        self._budget = Budget(self._window_bytes, ids_max=self._young_ids)
        self._outbox = Outbox(extent(database)[1]) if self._journal else None
        self._large = LargeBodies(database, number=self._next_number)
        cut = self._large.load()
        for _, value in list(database.scan(keys.TOPIC, keys.after(keys.TOPIC))):
            self._enter(read_topic(value))
        self._transactions = Seen(_OF_NO_TOPIC, database)
        self._watermark = watermark
        self._committer = Committer(database, watermark, self._fail)
        self.bodies = RocksBodies(self._large, self._committer, self._check_working)
        self._failure = None
        if cut is not None:
            self._committer.write(cut)

    async def close(self) -> None:
        """Make everything durable and give the directory back."""
        if self._failure == "the store is not open":
            return
        self._failure = "the store is not open"
        self.bodies.close()
        await self._committer.stop()
        self._images.clear()
        for snapshot in self._snapshots:
            snapshot.close()
        self._snapshots.clear()
        sequence = self._database.sequence
        await asyncio.to_thread(self._database.close)
        await asyncio.to_thread(self._watermark.write, Mark(sequence, *manifest_of(self._database.path)))

    @property
    def failure(self) -> str | None:
        """Why nothing is taken, or None."""
        return self._failure

    async def recover(self, now: int) -> None:
        """Throw the image away and read everything from disk again."""
        if self._failure is None:
            return
        try:
            await self.close()
        except Exception as cause:  # noqa: BLE001  whatever stood in the way, opening will say
            self._failure = f"cannot close: {cause}"
        await self.open(now)

    def _fail(self, reason: str) -> None:
        if self._failure is None:
            self._failure = reason

    def stats(self) -> dict[str, float]:
        """Numbers for the metrics."""
        return {
            "writes": self._committer.writes,
            "syncs": self._committer.syncs,
            "sync_seconds": self._committer.sync_seconds,
            "window_bytes": self._budget.used,
            **self._large.stats(),
        } | (self._outbox.stats() if self._outbox is not None else {})

    # Steps

    def _check_working(self) -> None:
        if self._failure is not None:
            raise StoreError(f"the storage takes no requests: {self._failure}", code=Code.STORE_FAILED)

    def _image(self, topic: Topic) -> Image:
        self._check_working()
        # A topic that was dropped meanwhile looks empty.
        return self._images.get(topic.number) or self._new_image(topic)

    async def _change(self, topic: Topic, now: int, change: Callable[[Image, Batch], Result]) -> Result:
        """Make one change to a topic, write it, and wait until it is durable."""
        image = self._image(topic)
        return await self._commit((image,), now, lambda batch: change(image, batch))

    async def _commit(self, images: Sequence[Image], now: int, change: Callable[[Batch], Result]) -> Result:
        """Make one change to images, write it, and wait until it is durable."""
        batch = new_batch()
        for image in images:
            image.now = now
        try:
            result = change(batch)
        except StoreError as cause:
            self._fail(str(cause))
            raise
        except DejaqError:
            # What was refused changed nothing; the end of a lease that was noticed on the way stands.
            self._write(images, batch, now)
            raise
        except Exception as cause:
            # The image may be half changed; it is read again from disk before anything else is taken.
            self._fail(f"a change was left half done: {cause!r}")
            raise
        durable = self._write(images, batch, now)
        if durable is None and result is not None:
            # A refusal tells of a state that must not be undone by a crash; "nothing is due" tells of none.
            durable = self._committer.pending()
        if durable is not None and any(image.topic.settings.durability is Durability.FSYNC for image in images):
            await asyncio.shield(durable)
        return result

    def _write(self, images: Sequence[Image], batch: Batch, now: int) -> asyncio.Future[None] | None:
        """Write what a change has put together, with its record in the journal; None when that is nothing."""
        for image in images:
            image.write_counts(batch)
        self._put_record(batch, now)
        return self._committer.write(batch) if len(batch) else None

    def _put_record(self, batch: Batch, now: int) -> None:
        entry = self._outbox.take(now) if self._outbox is not None else None
        if entry is not None:
            batch.put(keys.journal(entry[0]), entry[1])

    async def _look(self, topic: Topic, query: Callable[[Image], Result]) -> Result:
        """Answer a query with what is durable."""
        result = query(self._image(topic))
        durable = self._committer.pending()
        if durable is not None and topic.settings.durability is Durability.FSYNC:
            await asyncio.shield(durable)
        return result

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _new_image(self, topic: Topic) -> Image:
        make = PriorityImage if topic.by_priority else Image
        return make(
            topic,
            self._database,
            budget=self._budget,
            number=self._next_number,
            outbox=self._outbox,
            large=self._large,
        )

    def _enter(self, topic: Topic) -> Image:
        image = self._new_image(topic)
        image.load()
        self._images[topic.number] = image
        return image

    # Topics

    async def topics(self) -> list[Topic]:
        """Every topic."""
        return [image.topic for image in self._images.values()]

    async def put_topic(self, topic: Topic) -> None:
        """Write a topic's record."""
        self._check_working()
        image = self._images.get(topic.number) or self._enter(topic)
        image.topic = topic
        batch = new_batch()
        batch.put(keys.of_topic(keys.TOPIC, topic.number), write_topic(topic))
        await asyncio.shield(self._committer.write(batch))

    async def next_topic_number(self) -> int:
        """Count one up, durably."""
        number = int(self._database.get(_TOPICS) or b"0") + 1
        batch = new_batch()
        batch.put(_TOPICS, str(number).encode())
        await asyncio.shield(self._committer.write(batch))
        return number

    async def drop_topic(self, topic: Topic, now: int) -> None:
        """Remove everything of a topic and give the disk space back."""
        image = self._images.pop(topic.number, None)
        if image is None:
            return
        image.close()
        batch = new_batch()
        if image.outbox is not None:
            image.outbox.dropped(topic.name)
            self._put_record(batch, now)
        for table in keys.OF_TOPIC:
            prefix = keys.of_topic(table, topic.number)
            batch.delete_range(prefix, keys.after(prefix))
        self._large.drop_topic(topic.number, batch)
        await asyncio.shield(self._committer.write(batch))

    # The producer's side

    async def create(self, topic: Topic, batch: CreateBatch, now: int) -> Outcomes:
        """Create the admitted rows."""
        self._check_known(topic)
        self._forget_sessions(now)
        return await self._change(topic, now, lambda image, writes: creating.create(image, batch, now, writes))

    def _check_known(self, topic: Topic) -> None:
        if topic.number not in self._images and self._failure is None:
            raise error_of(Code.TOPIC_NOT_FOUND, f"topic {topic.name!r} is not in this store")

    def _forget_sessions(self, now: int) -> None:
        """Once an hour, drop the producer sessions that nobody can still be repeating."""
        if now - self._forgot_at < _FORGET_EVERY_MS or self._failure is not None:
            return
        self._forgot_at = now
        batch = new_batch()
        for image in self._images.values():
            image.seen.forget(now - limits.PRODUCER_SESSION_MS_MAX, batch)
        self._transactions.forget(now - limits.PRODUCER_SESSION_MS_MAX, batch)
        if len(batch):
            self._committer.write(batch)

    async def edit(self, topic: Topic, owner: str, edits: Edits, now: int) -> Outcomes:
        """Change messages of an owner."""
        self._put_back(self._image(topic), now)
        return await self._change(topic, now, lambda image, writes: owning.edit(image, owner, edits, now, writes))

    async def cancel(
        self, topic: Topic, owner: str, ids: Sequence[str], now: int, versions: Sequence[int | None] | None = None
    ) -> Outcomes:
        """Remove messages of an owner."""
        self._put_back(self._image(topic), now)
        return await self._change(
            topic, now, lambda image, writes: owning.cancel(image, owner, ids, now, writes, versions=versions)
        )

    # The consumer's side

    async def lease(self, topic: Topic, request: LeaseRequest, now: int) -> LeaseSet | None:
        """Lease what is due."""
        image = self._image(topic)
        graves = self._taking(request.dead_letter) if request.dead_letter is not None else None
        self._put_back(image, now)
        images = (image,) if graves is None else (image, graves)
        return await self._commit(images, now, lambda writes: leasing.lease(image, request, now, writes, graves))

    def _put_back(self, image: Image, now: int) -> None:
        """Write where the rows of ended leases wait, so that what follows finds them there."""
        if not image.topic.settings.expiry_backoff:
            return
        batch = new_batch()
        image.now = now
        dying.put_back(image, now, batch)
        self._write((image,), batch, now)

    def _taking(self, topic: Topic) -> Image:
        """The image of a topic that another one's messages come to; raises TOPIC_NOT_FOUND unless it takes them."""
        self._check_working()
        image = self._images.get(topic.number)
        if image is None or image.topic.state is TopicState.DELETING:
            raise error_of(Code.TOPIC_NOT_FOUND, f"topic {topic.name!r} is not there to take messages")
        return image

    async def find_body(self, topic: Topic, digest: bytes) -> bytes | None:
        """A shared body by its digest."""
        image = self._image(topic)
        return None if image.apart.shared is None else image.apart.shared.find(digest)

    async def next_ts(self, topic: Topic, buckets: Sequence[int], now: int) -> int | None:
        """When something may become due."""
        return leasing.next_ts(self._image(topic), buckets)

    async def load(self, topic: Topic, buckets: Sequence[int], until: int) -> None:
        """Read ahead in small steps, letting others run between them."""
        for bucket in (*buckets, keys.SPREAD):
            while self._failure is None and self._image(topic).load_near(bucket, until):  # noqa: ASYNC110  no poll
                await asyncio.sleep(0)

    async def leases_of(self, topic: Topic, consumer: str, now: int) -> list[LeaseSet]:
        """What is left of a consumer's live leases."""
        return await self._look(topic, lambda image: leasing.leases_of(image, consumer, now))

    async def delete(
        self,
        topic: Topic,
        lease_id: int,
        consumer: str,
        rows: Sequence[RowRange] | None,
        now: int,
        handed_us: Sequence[int] = (),
    ) -> Outcomes:
        """Remove leased rows."""
        return (await self.delete_many(topic, consumer, [Deletion(lease_id, rows, handed_us)], now))[0]

    async def delete_many(self, topic: Topic, consumer: str, deletions: Sequence[Deletion], now: int) -> list[Outcomes]:
        """Remove rows of several leases."""

        def change(image: Image, writes: Batch) -> list[Outcomes]:
            return settling.delete_many(image, consumer, deletions, now, writes)

        return await self._change(topic, now, change)

    async def extend(
        self,
        topic: Topic,
        lease_id: int,
        consumer: str,
        rows: Sequence[RowRange] | None,
        expires: int,
        now: int,
    ) -> Outcomes:
        """Move the end of leased rows."""

        def change(image: Image, writes: Batch) -> Outcomes:
            settlement = settling.Settlement(image, lease_id, consumer, rows, now)
            settling.extend(settlement, expires, writes)
            return settlement.outcomes

        return await self._change(topic, now, change)

    async def release(
        self,
        topic: Topic,
        lease_id: int,
        consumer: str,
        rows: Sequence[RowRange] | None,
        ts: int | Sequence[int],
        now: int,
        handed_us: Sequence[int] = (),
    ) -> Outcomes:
        """Put leased rows back on the timeline."""

        def change(image: Image, writes: Batch) -> Outcomes:
            settlement = settling.Settlement(image, lease_id, consumer, rows, now)
            settling.release(settlement, ts, handed_us, writes)
            return settlement.outcomes

        return await self._change(topic, now, change)

    async def recall(
        self, topic: Topic, lease_id: int, consumer: str, rows: Sequence[RowRange] | None, now: int
    ) -> Outcomes:
        """Undo the lease of rows that user code never saw."""

        def change(image: Image, writes: Batch) -> Outcomes:
            settlement = settling.Settlement(image, lease_id, consumer, rows, now)
            settling.recall(settlement, writes)
            return settlement.outcomes

        return await self._change(topic, now, change)

    async def reject(
        self,
        topic: Topic,
        lease_id: int,
        consumer: str,
        rows: Sequence[RowRange] | None,
        dead_letter: Topic,
        reason: str,
        now: int,
        handed_us: Sequence[int] = (),
    ) -> Outcomes:
        """Move leased rows to the dead-letter topic."""
        image, graves = self._image(topic), self._taking(dead_letter)

        def change(writes: Batch) -> Outcomes:
            settlement = settling.Settlement(image, lease_id, consumer, rows, now)
            dying.reject(settlement, graves, reason, handed_us, now, writes)
            return settlement.outcomes

        return await self._commit((image, graves), now, change)

    async def redrive(self, topic: Topic, target: Topic, ids: Sequence[str], now: int) -> Outcomes:
        """Move dead letters to where they may live again."""
        image, goal = self._image(topic), self._taking(target)
        if image is goal:
            raise error_of(Code.INVALID_ARGUMENT, f"{topic.name!r} cannot be redriven to itself")
        self._put_back(image, now)

        def change(writes: Batch) -> Outcomes:
            image.lapse(now, writes)
            return dying.redrive(image, goal, ids, now, writes)

        return await self._commit((image, goal), now, change)

    # Both sides at once

    async def transact(self, transaction: Transaction, now: int) -> Verdict:
        """Do all steps in one write, or none; a repeat changes nothing, not even where rows of ended leases wait."""
        for step in transaction.steps:
            self._check_known(step.topic)
        self._forget_sessions(now)
        images = {step.topic.number: self._image(step.topic) for step in transaction.steps}
        if not self._transactions.rows(transaction.session, transaction.sequence, 1):
            for image in images.values():
                self._put_back(image, now)

        def change(writes: Batch) -> Verdict:
            return stepping.transact(images, self._transactions, transaction, now, writes)

        return await self._commit(list(images.values()), now, change)

    # The journal

    async def journal(self, after: int, bytes_max: int) -> list[bytes]:
        """The records behind a sequence."""
        self._check_working()
        found = records_behind(self._database, after, bytes_max)
        durable = self._committer.pending()
        if durable is not None:
            await asyncio.shield(durable)
        return found

    async def trim_journal(self, up_to: int) -> None:
        """Remove the records up to a sequence."""
        self._check_working()
        batch = new_batch()
        trim(self._database, up_to, batch)
        if len(batch):
            await asyncio.shield(self._committer.write(batch))

    # Queries

    async def get(self, topic: Topic, ids: Sequence[str], now: int) -> list[Message | None]:
        """The messages of the ids."""
        return await self._look(topic, lambda image: querying.get(image, ids))

    async def holders(self, topic: Topic, ids: Sequence[str], now: int) -> list[Holder | None]:
        """Who holds the ids."""
        return await self._look(topic, lambda image: owning.holders(image, ids, now))

    async def count(self, topic: Topic, where: Filter, now: int) -> int:
        """How many messages match."""
        counts = await self.histogram(topic, where, 2**63, now)
        return sum(count for _, count in counts)

    async def histogram(self, topic: Topic, where: Filter, step: int, now: int) -> list[tuple[int, int]]:
        """Counts by step of time."""
        if where.narrow:
            return await self._tally(topic, where, step, now)
        return await self._look(topic, lambda image: querying.histogram(image, where, step, now))

    async def browse(self, topic: Topic, where: Filter, cursor: bytes | None, limit: int, now: int) -> Page:
        """One page of messages."""
        if where.narrow:
            return await self._browse_narrow(topic, where, cursor, limit, now)
        return await self._look(topic, lambda image: querying.browse(image, where, cursor, limit, now))

    async def _tally(self, topic: Topic, where: Filter, step: int, now: int) -> list[tuple[int, int]]:
        """Counts by step of what only the rows themselves tell, read beside everything else."""
        snapshot = await self.snapshot(topic, now)
        try:
            return await snapshot.tally(where, step)
        finally:
            snapshot.close()

    async def _browse_narrow(self, topic: Topic, where: Filter, cursor: bytes | None, limit: int, now: int) -> Page:
        """Page after page of all messages until enough of them match, letting others run between them."""
        wide = replace(where, priorities=None, headers=())
        found: list[Message] = []
        while True:
            page = await self.browse(topic, wide, cursor, _NARROW_STEP, now)
            found += [m for m in page.messages if where.fits(m.priority, encode_headers(m.headers))]
            if len(found) > limit:
                del found[limit:]
                return Page(found, querying.cursor_behind(found[-1], by_priority=topic.by_priority))
            if page.cursor is None:
                return Page(found, None)
            cursor = page.cursor
            await asyncio.sleep(0)

    async def oldest(self, topic: Topic, now: int, count: int) -> list[tuple[int, int]]:
        """The oldest available message of each priority, bucket by bucket, letting others run between them."""
        oldest: dict[int, int] = {}
        for bucket in range(topic.settings.buckets):
            image = self._image(topic)
            for priority, ts in prioritising.oldest(image, bucket, now, count):
                oldest[priority] = min(ts, oldest.get(priority, ts))
            await asyncio.sleep(0)
        return outermost(oldest, count)

    async def snapshot(self, topic: Topic, now: int) -> RocksSnapshot:
        """A view of a topic, kept until it is closed or the store is."""

        def take(image: Image) -> RocksSnapshot:
            return RocksSnapshot(image, self._database.view(), now)

        snapshot = await self._look(topic, take)
        self._snapshots.add(snapshot)
        return snapshot
