"""The embedded store: the storage contract on RocksDB."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from weakref import WeakSet

from dejaq import limits
from dejaq.crashpoints import crash_at
from dejaq.domain.batch import LeaseRequest, LeaseSet, Outcomes
from dejaq.domain.changes import Cancel, Change, Create, Delete, Edit, Extend, Recall, Redrive
from dejaq.domain.context import CallContext
from dejaq.domain.id_column import IdColumn
from dejaq.domain.topic import Topic, TopicStage
from dejaq.errors import Code, DejaqError, Refused, StoreError, error_of
from dejaq.storage.base import Capabilities
from dejaq.storage.grouping import grouped
from dejaq.storage.outbox import Outbox
from dejaq.storage.rocksdb.bodies.large import LargeBodies
from dejaq.storage.rocksdb.bodies.sealed_values import SealedValues
from dejaq.storage.rocksdb.bodies.uploading import RocksBodies
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import Batch, RocksDatabase, new_batch, write_error
from dejaq.storage.rocksdb.engine.engine import Engine, LogSizes
from dejaq.storage.rocksdb.engine.journal import extent
from dejaq.storage.rocksdb.engine.starting import SEGMENTS, mark_of, stored_topics
from dejaq.storage.rocksdb.engine.watermark import Watermark, check_manifest
from dejaq.storage.rocksdb.log.opening import OpenedSegments, SegmentSettings
from dejaq.storage.rocksdb.log.store import RocksLogs
from dejaq.storage.rocksdb.operations import applying, dead_letters, leasing, pending_changes
from dejaq.storage.rocksdb.operations.creating_together import create_together
from dejaq.storage.rocksdb.operations.loading import RowLoader
from dejaq.storage.rocksdb.operations.pending_changes import PendingChanges, is_small
from dejaq.storage.rocksdb.operations.queueing import ProducerQueue
from dejaq.storage.rocksdb.operations.transactions import RocksTransactions
from dejaq.storage.rocksdb.operations.writing import ChangeWriter
from dejaq.storage.rocksdb.timeline.far import by_id_steps, pending_by_id
from dejaq.storage.rocksdb.timeline.ids.hashing import note_distinct
from dejaq.storage.rocksdb.timeline.levels.merger import Merger
from dejaq.storage.rocksdb.timeline.levels.settings import LevelSettings
from dejaq.storage.rocksdb.timeline.memory.budget import Budget
from dejaq.storage.rocksdb.timeline.prioritising import PriorityTopicState
from dejaq.storage.rocksdb.timeline.session_sequences import ForgottenSessions, SessionSequences
from dejaq.storage.rocksdb.timeline.topic_state import TopicState
from dejaq.storage.value_ciphers import ValueCiphers

log = logging.getLogger(__name__)

# The names of transactions are stored like those of batches, under a number that no topic has.
_OF_NO_TOPIC = 0
# The low bits count within one start of the store, the high bits count the starts.
_COUNTER_BITS = 40
_CLOSED = "the store is not open"


class RocksStorage(RocksTransactions):
    """Topics and messages in one directory, which only one process can use."""

    def __init__(
        self,
        path: Path,
        *,
        window_bytes: int = limits.WINDOW_BYTES_DEFAULT,
        young_ids: int = limits.YOUNG_IDS_MAX,
        journal: bool = False,
        log: LogSizes | None = None,
        levels: LevelSettings | None = None,
        log_tail_bytes: int = limits.LOG_TAIL_BYTES,
        log_segments: SegmentSettings | None = None,
    ) -> None:
        self._path, self._journal = path, journal
        self._log_sizes, self._log_segments = log or LogSizes(), log_segments or SegmentSettings()
        self._window_bytes, self._young_ids, self._levels = window_bytes, young_ids, levels
        self._log_tail_bytes, self._number = log_tail_bytes, 0
        self.value_ciphers: ValueCiphers | None = None
        self._failure: str | None = _CLOSED
        self._why_closed = _CLOSED  # or the error of the last try to open it again
        self._damage: StoreError | None = None  # it is permanent: the files must be restored before the next start
        self._states, self._snapshots = dict[int, TopicState](), WeakSet()
        self._engine: Engine | None = None
        self._closing: asyncio.Task[None] | None = None
        self._forgotten = ForgottenSessions(0)

    @property
    def capabilities(self) -> Capabilities:
        """Durable, and for one process."""
        return Capabilities(name="rocksdb", durable=True, shared=False, shares_bodies=True, compacts_logs=True)

    # Lifecycle

    async def open(self, now: int) -> None:
        """Open the directory, and create it if it does not exist."""
        watermark = Watermark(self._path / "watermark")
        mark = mark_of(self._path, watermark)
        if not mark.first:
            check_manifest(self._path / "db", mark)
        database = RocksDatabase(self._path / "db")
        crash_at("storage.database_made")
        try:
            engine = Engine(self._path, database, watermark, mark, self._log_sizes)
            try:
                database.values = SealedValues(self.value_ciphers)
                topics = stored_topics(database)
                await database.values.learn(topics)
                self._start(engine, topics)
            except BaseException:
                engine.log.close()
                raise
        except BaseException as cause:
            self._states.clear()
            self._abandon(database)
            if isinstance(cause, Exception) and not isinstance(cause, DejaqError):
                raise error_of(
                    Code.STORE_CORRUPT,
                    f"{self._path} has damaged records; restore it from a backup",
                    details=repr(cause),
                ) from None
            raise
        self._forgotten = ForgottenSessions(now)

    def _abandon(self, database: RocksDatabase) -> None:
        """Close a database after a failed start; what its close reports must not hide why the start failed."""
        try:
            database.close()
        except Exception as cause:  # noqa: BLE001  rocksdict raises plain Exception
            log.warning("%s was not closed as it should be: %s", self._path, cause)

    def _start(self, engine: Engine, topics: Iterable[Topic]) -> None:
        crash_at("storage.boot_marked")
        self._database = database = engine.database
        database.on_fault, database.on_moved = self._meet, self._frame_moved
        self._number = engine.boot << _COUNTER_BITS
        self._budget = Budget(self._window_bytes, ids_max=self._young_ids)
        self._outbox = Outbox(extent(database)[1]) if self._journal else None
        self._large = LargeBodies(database, number=self._next_number)
        cut = self._large.load()
        for topic in topics:
            self._enter(topic)
        self._transactions = SessionSequences(_OF_NO_TOPIC, database)
        segments = OpenedSegments.open(self._path / SEGMENTS, database, self._log_segments)
        engine.begin(self._meet)
        # The metrics are those of the engine before, until there is another one that works.
        self._engine = engine
        self._committer = engine.committer
        self.bodies = RocksBodies(self._large, self._committer, self._check_working)
        self.merger = Merger(lambda: [] if self._failure else list(self._states.values()), self._committer, self._fail)
        self._producers = ProducerQueue(self._committer, self.merger)
        self._rows = RowLoader(lambda: list(self._states.values()), self._is_live)
        self._writer = ChangeWriter(self._committer, self._outbox, self.merger, self._meet, self._fail)
        self._pending = PendingChanges(self._committer, self._apply_together, self._transact_together, self._change)
        self._committer.before_sync = self._pending.begin_flush
        self.logs = RocksLogs(
            *(database, self._committer, segments, engine.keeper),
            next_number=self._next_number,
            check=self._check_working,
            altering=self._writer.altering,
            topic_of=self._live_topic,
            tail_bytes=self._log_tail_bytes,
        )
        self._failure = self._damage = None
        if cut is not None:
            self._committer.write(cut)

    async def close(self) -> None:
        """Make everything durable and release the directory; the call completes even if its caller is cancelled."""
        if self._closing is None:
            if self._failure == _CLOSED:
                return
            self._pending.flush()
            self._closing = asyncio.get_running_loop().create_task(self._close())
        closing = self._closing
        try:
            await asyncio.shield(closing)
        finally:
            if closing.done():
                self._closing = None

    async def _close(self) -> None:
        failed = self._failure is not None
        self._failure = _CLOSED
        self.bodies.close()
        assert self._engine is not None
        await self.merger.stop()
        await self.logs.segments.stop()
        await self._engine.stop()
        await asyncio.to_thread(self.logs.segments.files.close)
        self._states.clear()
        for snapshot in self._snapshots:
            snapshot.close()
        self._snapshots.clear()
        try:
            await self._engine.close()
        except Exception as cause:  # noqa: BLE001  rocksdict raises plain Exception
            if not failed:
                raise write_error(self._path, cause) from None
            log.warning("%s was not closed as it should be: %s", self._path, cause)
        # After a failure it is unknown how much reached the disk, and nothing after the last mark was acknowledged.
        if not failed and not self._committer.broken:
            await self._engine.mark()

    async def checkpoint(self, path: Path) -> None:
        """Copy all acknowledged changes to a new directory at `path`, which links to the same files where possible."""
        self._check_working()
        assert self._engine is not None
        await self._engine.checkpoint(path)
        self._check_working()

    @property
    def identity(self) -> str:
        """No other broker shares this store."""
        return ""

    @property
    def failure(self) -> str | None:
        """The reason why no requests are accepted, or None."""
        return self._why_closed if self._failure == _CLOSED else self._failure

    @property
    def corrupt(self) -> bool:
        """Whether damage was found since the store was opened."""
        return self._damage is not None

    async def recover(self, now: int) -> None:
        """Drop the state and read everything from disk again; damage that was found remains until a repair."""
        if self._failure is None:
            return
        if self._damage is not None:
            raise self._damage.with_traceback(None)
        try:
            await self.close()
        except Exception as cause:  # noqa: BLE001  the following open reports the fault
            self._failure = f"cannot close: {cause}"
        try:
            await self.open(now)
        except DejaqError as error:
            self._why_closed = str(error)
            raise
        self._why_closed = _CLOSED

    def _meet(self, error: StoreError) -> None:
        """React to a failed read, write or sync."""
        if error.code is Code.STORE_CORRUPT and self._damage is None:
            advice = f"{self._path} is damaged; stop the broker, restore the directory from a backup and start again"
            self._damage = StoreError(advice, code=error.code, details=error.details)
            self._failure = str(self._damage)
            log.error("%s", self._damage)
        self._fail(str(error))

    def _frame_moved(self, key: bytes) -> None:
        state = self._states.get(keys.topic_of(key))
        if state is not None:
            (state.index.frame_moved if key.startswith(keys.ID_FRAME) else state.runs.stored.forget)(key)

    def _fail(self, reason: str) -> None:
        self._failure = self._failure or reason

    def stats(self) -> dict[str, float]:
        """Numbers for the metrics."""
        assert self._engine is not None
        parts = (self._engine, self._large, self.merger, self.logs)
        figures = {name: value for part in parts for name, value in part.stats().items()}
        return {**figures, **self._budget.stats(), **self.journal_stats()}

    def journal_stats(self) -> dict[str, float]:
        """Those of the journal."""
        return self._outbox.stats() if self._outbox is not None else {}

    # Steps

    def _check_working(self) -> None:
        if self._damage is not None:
            raise self._damage.with_traceback(None)
        if self._failure is not None:
            raise StoreError(f"the storage takes no requests: {self.failure}", code=Code.STORE_FAILED)

    def _state(self, topic: Topic, *, waiting: bool = True) -> TopicState:
        """The state of a topic, after all that arrived for it, or without the changes that wait."""
        self._check_working()
        if waiting:
            self._pending.flush(topic.number)
        # A topic that was dropped meanwhile appears empty.
        return self._states.get(topic.number) or self._new_state(topic)

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _new_state(self, topic: Topic) -> TopicState:
        make = PriorityTopicState if topic.by_priority else TopicState
        parts = {"budget": self._budget, "outbox": self._outbox, "large": self._large, "levels": self._levels}
        return make(topic, self._database, number=self._next_number, **parts)  # type: ignore[arg-type]

    def _enter(self, topic: Topic) -> TopicState:
        state = self._new_state(topic)
        state.load()
        self._states[topic.number] = state
        return state

    # Changes

    async def apply(self, changes: Sequence[Change], now: int, context: CallContext) -> list[Outcomes | Refused]:
        """Apply each change separately; consecutive deletes of one consumer share a write, as do
        extensions, small creates, and small changes by id.

        Every other change has its own write, because it reads the results of earlier changes from the database.
        """
        self._check_working()
        self._forget_sessions(now)
        await self._producers.make_room(changes)
        self._check_working()
        match changes:
            case [Create() as create] if is_small(create):
                return await self._pending.add(create, now, context)
        if pending_by_id.waits_for_others(changes):
            return await self._pending.add_by_id(changes[0], now, context)
        answers: list[Outcomes | Refused] = []
        for group in grouped(changes):
            (change, *_) = group
            if by_id_steps.is_large(change):
                answers.append(await self._apply_in_parts(change, now, context))
            else:
                answers += await self._apply(group, now, context)
        return answers

    def look_at(self, ids: IdColumn) -> None:
        """Note whether all ids differ."""
        note_distinct(ids)

    async def _apply_in_parts(self, change: Edit | Cancel, now: int, context: CallContext) -> Outcomes | Refused:
        """Apply a change of many ids in several steps of the event loop."""
        apply = partial(self._change, now=now, context=context)
        return await by_id_steps.apply_in_parts(change, partial(self._state, change.topic), self._is_live, apply)

    def begin(
        self, changes: Sequence[Change], now: int, context: CallContext
    ) -> asyncio.Future[list[Outcomes | Refused]] | None:
        """Begin a small create, or deletes, at once."""
        match changes:
            case [Create() as create] if is_small(create) and self._producers.free:
                self._check_working()
                self._forget_sessions(now)
                return self._pending.add(create, now, context)
        if not all(isinstance(change, Delete) for change in changes):
            return None
        self._check_working()
        self._forget_sessions(now)
        if pending_changes.deletes_few(changes):
            return self._pending.add_deletes(changes, now, context)
        answers, durable = self._change(changes, now, context)
        return pending_changes.answer_when(durable, answers)

    async def _apply(self, changes: Sequence[Change], now: int, context: CallContext) -> list[Outcomes | Refused]:
        answers, durable = self._change(changes, now, context)
        if durable is not None:
            await asyncio.shield(durable)
        return answers

    def _change(
        self, changes: Sequence[Change], now: int, context: CallContext
    ) -> tuple[list[Outcomes | Refused], asyncio.Future[None] | None]:
        """Apply changes in one write; returns the answers, and what is to be durable before they are given."""
        for change in changes:
            self._pending.flush_deletes(change.topic.number)
        states: dict[int, TopicState] = {}
        refusals = [self._prepare(change, states, now, context) for change in changes]

        work = partial(applying.attempt_all, states, changes, refusals, now)
        return self._writer.apply(list(states.values()), now, context, work)

    def _apply_together(
        self, deletes: Sequence[pending_changes.PendingDeletes], groups: Sequence[pending_changes.PendingGroup]
    ) -> pending_changes.Applied:
        """Apply deletes and creates that waited for each other in one write."""
        self._check_working()
        context = deletes[0].context if deletes else groups[0].context
        now = max([one.now for one in deletes] + [group.now for group in groups])
        states = {group.topic.number: self._states[group.topic.number] for group in groups if self._knows(group.topic)}
        refusals = [[self._prepare(change, states, one.now, one.context) for change in one.changes] for one in deletes]

        def work(writes: Batch) -> tuple[Sequence[pending_changes.Answers], Sequence[pending_changes.Answers]]:
            known = zip(deletes, refusals, strict=True)
            deleted = [applying.attempt_all(states, one.changes, codes, one.now, writes) for one, codes in known]
            return deleted, [self._create(group, writes) for group in groups]

        return self._writer.apply(list(states.values()), now, context, work, changes=len(deletes) + len(groups))

    def _create(self, group: pending_changes.PendingGroup, writes: Batch) -> pending_changes.Answers:
        state = self._states.get(group.topic.number)
        if state is None:
            return [applying.unknown(group.topic)] * len(group.creates)
        return create_together(state, [create.batch for create in group.creates], group.now, writes)

    def _prepare(self, change: Change, states: dict[int, TopicState], now: int, context: CallContext) -> Refused | None:
        """Find the topics of a change, or the reason why it is refused."""
        try:
            target = applying.target_of(change)
            if target is not None:
                states[target.number] = self._taking(target)
            if isinstance(change, Create):
                self._check_known(change.topic)
        except Refused as refusal:
            return refusal
        waiting = not isinstance(change, Delete | Extend | Recall)
        state = states.setdefault(change.topic.number, self._state(change.topic, waiting=waiting))
        if isinstance(change, Edit | Cancel | Redrive):
            self._delay_expired(state, now, context)
        return None

    def _knows(self, topic: Topic) -> bool:
        return topic.number in self._states

    def _check_known(self, topic: Topic) -> None:
        if not self._knows(topic) and self._failure is None:
            raise applying.unknown(topic)

    def _forget_sessions(self, now: int) -> None:
        """Remove a few of the producer sessions that no producer can still repeat."""
        if self._failure is not None or not self._forgotten.is_due(now):
            return
        batch = new_batch()
        with self._writer.altering():
            books = (state.sequences for state in self._states.values())
            self._forgotten.step(lambda: [*books, self._transactions], now, batch)
            if len(batch):
                self._committer.write(batch)

    # Consumer

    async def lease(self, topic: Topic, request: LeaseRequest, now: int, context: CallContext) -> LeaseSet | None:
        """Lease the due messages."""
        until = now if topic.by_priority else request.until
        state = self._state(topic, waiting=False)
        await self._rows.read_due(state, request.buckets, until)
        await self.merger.lead(state, request.buckets, now)
        await self._rows.divide(state, request.buckets, now)
        self._pending.flush_due(topic, max(until, now))
        if (ended := state.leases.next_end()) is not None and ended <= now:
            # Rows of it may wait to be deleted.
            self._pending.flush(topic.number)
        state = self._state(topic, waiting=False)
        target = self._taking(request.dead_letter) if request.dead_letter is not None else None
        self._delay_expired(state, now, context)
        states = (state,) if target is None else (state, target)
        return await self._writer.commit(
            states, now, context, lambda writes: leasing.lease(state, request, now, writes, target)
        )

    def _delay_expired(self, state: TopicState, now: int, context: CallContext) -> None:
        """Write the new times of rows of expired leases, so that later steps find them."""
        if not state.topic.settings.expiry_backoff:
            return
        batch = new_batch()
        state.now = now
        with self._writer.altering():
            dead_letters.delay_expired(state, now, batch)
            self._writer.write((state,), batch, now, context)

    def _taking(self, topic: Topic) -> TopicState:
        """The state of a topic that receives messages; raises TOPIC_NOT_FOUND unless it accepts them."""
        self._check_working()
        if self._live_topic(topic.number) is None:
            raise error_of(Code.TOPIC_NOT_FOUND, f"topic {topic.name!r} does not exist or is being deleted")
        return self._states[topic.number]

    def _live_topic(self, number: int) -> Topic | None:
        state = self._states.get(number)
        return None if state is None or state.topic.state is TopicStage.DELETING else state.topic

    async def next_ts(self, topic: Topic, buckets: Sequence[int], now: int) -> int | None:
        """The time at which something may become due."""
        stored = leasing.next_ts(self._state(topic, waiting=False), buckets)
        return self._pending.earliest(topic, stored)

    async def load(self, topic: Topic, buckets: Sequence[int], until: int) -> None:
        """Read due messages into memory in small steps; other tasks run between them."""
        state = self._states.get(topic.number)
        if state is not None:
            await self._rows.load(state, buckets, until)

    def _is_live(self, state: TopicState) -> bool:
        """Whether a state is that of its topic, and the store works; a topic that was dropped has none."""
        return self._failure is None and self._states.get(state.topic.number) is state

    # The journal

    async def journal(self, after: int, bytes_max: int) -> list[bytes]:
        """The records after a sequence."""
        self._check_working()
        assert self._engine is not None
        return await self._engine.journal(after, bytes_max, self._check_working)

    async def trim_journal(self, up_to: int) -> None:
        """Remove the records up to a sequence."""
        self._check_working()
        assert self._engine is not None
        await self._engine.trim_journal(up_to)
