"""The topics of the embedded store: their records, and what is removed with one of them."""

from __future__ import annotations

import asyncio

from dejaq.domain.context import CallContext
from dejaq.domain.topic import Topic
from dejaq.domain.topic_record import write_topic
from dejaq.storage.rocksdb.bodies.large import LargeBodies
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import new_batch
from dejaq.storage.rocksdb.log.store import RocksLogs
from dejaq.storage.rocksdb.operations.pending_changes import PendingChanges
from dejaq.storage.rocksdb.operations.writing import ChangeWriter
from dejaq.storage.rocksdb.reading.answering import RocksQueries
from dejaq.storage.rocksdb.timeline.topic_state import TopicState

_TOPICS = keys.META + b"topics"


class RocksTopics(RocksQueries):
    """The calls of a `RocksStorage` that create and remove topics."""

    _states: dict[int, TopicState]
    _writer: ChangeWriter
    _pending: PendingChanges
    _large: LargeBodies
    logs: RocksLogs

    def _check_working(self) -> None:
        raise NotImplementedError

    def _enter(self, topic: Topic) -> TopicState:
        raise NotImplementedError

    async def topics(self) -> list[Topic]:
        """Every topic."""
        return [state.topic for state in self._states.values()]

    async def put_topic(self, topic: Topic, context: CallContext) -> None:
        """Write a topic's record."""
        self._check_working()
        batch = new_batch()
        batch.put(keys.of_topic(keys.TOPIC, topic.number), write_topic(topic))
        with self._writer.altering():
            (self._states.get(topic.number) or self._enter(topic)).topic = topic
            durable = self._committer.write(batch)
        await asyncio.shield(durable)

    async def next_topic_number(self) -> int:
        """The next number, which is made durable."""
        self._check_working()
        number = int(self._database.get(_TOPICS) or b"0") + 1
        batch = new_batch()
        batch.put(_TOPICS, str(number).encode())
        await asyncio.shield(self._committer.write(batch))
        return number

    async def drop_topic(self, topic: Topic, now: int, context: CallContext) -> None:
        """Remove everything of a topic and free the disk space."""
        self._check_working()
        self._pending.flush(topic.number)
        await self.logs.abort_all(topic, now)
        state = self._states.get(topic.number)
        if state is None:
            return
        batch = new_batch()
        with self._writer.altering():
            del self._states[topic.number]
            self.logs.drop(topic)
            state.close()
            if state.outbox is not None:
                state.outbox.dropped(topic.name)
                self._writer.put_record(batch, now, context)
            for prefix in (keys.of_topic(table, topic.number) for table in keys.OF_TOPIC):
                batch.delete_range(prefix, keys.after(prefix))
            batch.dropped_topics.append(topic.number)
            self._large.drop_topic(topic.number, batch, now)
            durable = self._committer.write(batch)
        await asyncio.shield(durable)
        self.logs.segments.sweep(topic)
