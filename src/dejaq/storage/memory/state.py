"""The state of the reference storage, and functions that several operations share."""

from __future__ import annotations

from collections.abc import Sequence

from dejaq.domain.dead_letter import Cause
from dejaq.domain.topic import Topic, TopicStage
from dejaq.errors import Code, error_of
from dejaq.storage.memory.bodies import MemoryBodies
from dejaq.storage.memory.dead_letters import TopicMove, delays_of
from dejaq.storage.memory.journal import MemoryJournal
from dejaq.storage.memory.timeline import HeldMessage, Timeline


class MemoryState:
    """Topics, timelines, bodies and the journal."""

    def __init__(self, *, journal: bool) -> None:
        self.open = False
        self.journal = MemoryJournal(journal)
        self.topics: dict[int, Topic] = {}
        self.timelines: dict[int, Timeline] = {}
        self.topic_number = 0
        self._version = 0
        self.bodies = MemoryBodies(lambda: (m.body for timeline in self.timelines.values() for m in timeline.all()))
        # Belongs to no topic: only its sessions are used, for the names of transactions.
        self.transactions = Timeline(self.bodies)

    def timeline(self, topic: Topic) -> Timeline:
        """The messages of a topic."""
        self.check_open()
        timeline = self.timelines.get(topic.number)
        if timeline is None:
            timeline = Timeline(self.bodies, topic)
            # A topic that was dropped meanwhile appears empty, and is not remembered.
            if topic.number in self.topics:
                self.timelines[topic.number] = timeline
        return timeline

    def next_version(self) -> int:
        """A number greater than each before."""
        self._version += 1
        return self._version

    def check_open(self) -> None:
        """Raise unless the store is open."""
        if not self.open:
            raise error_of(Code.STORE_FAILED, "the memory store is not open")

    def check_live(self, topic: Topic) -> None:
        """Raise an error unless the topic accepts messages."""
        self.check_open()
        stored = self.topics.get(topic.number)
        if stored is None or stored.state is TopicStage.DELETING:
            raise error_of(Code.TOPIC_NOT_FOUND, f"topic {topic.name!r} does not exist or is being deleted")

    def to_dead_letters(self, topic: Topic, target: Topic, dead: Sequence[HeldMessage], cause: Cause, now: int) -> None:
        """Move messages to the dead-letter topic; the journal has already recorded that they left."""
        self.journal.arrived(target, self.topic_move(topic, target, now).to_dead_letters(dead, cause))

    def topic_move(self, topic: Topic, target: Topic, now: int) -> TopicMove:
        """The move of dead letters from one topic to another."""
        return TopicMove(
            topic, self.timeline(topic), target, self.timeline(target), version=self.next_version(), now=now
        )

    def expire_leases(self, topic: Topic, timeline: Timeline, now: int) -> None:
        """Record each lease that expired, once, and put its rows where the back-off says."""
        for lease in list(timeline.leases.values()):
            ends: dict[int, list[HeldMessage]] = {}
            for message in lease.messages():
                if message.ts <= now and message.row not in lease.reported:
                    ends.setdefault(message.ts, []).append(message)
                    lease.reported.add(message.row)
            for _, messages in sorted(ends.items()):
                delays = delays_of(topic.settings, messages)
                self.journal.expired(topic, lease, messages, delays)
                for message, delay in zip(messages, delays, strict=True):
                    if delay:
                        timeline.leave_lease(message)
                        message.version = self.next_version()
                        timeline.place(message, message.ts + delay)
