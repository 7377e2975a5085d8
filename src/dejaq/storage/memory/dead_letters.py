"""Dead letters of the memory store: moves from one timeline to another."""

from __future__ import annotations

from collections.abc import Sequence

from dejaq.domain import transitions
from dejaq.domain.batch import Outcomes
from dejaq.domain.dead_letter import (
    Cause,
    DeadLetterHistory,
    exhausted,
    expiry_delay_ms,
    free_id,
    id_before,
    without_history,
)
from dejaq.domain.ids import bucket_of
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.errors import Code
from dejaq.storage.memory.timeline import HeldMessage, Timeline


class TopicMove:
    """Moves messages from the timeline of one topic to that of another, for one change at one time."""

    def __init__(
        self, topic: Topic, timeline: Timeline, target: Topic, goal: Timeline, *, version: int, now: int
    ) -> None:
        self._topic, self._timeline = topic, timeline
        self._target, self._goal = target, goal
        self._version, self._now = version, now

    def to_dead_letters(self, dead: Sequence[HeldMessage], cause: Cause) -> list[HeldMessage]:
        """Move messages to the dead-letter topic; returns the dead letters."""
        now = self._now
        moved: list[HeldMessage] = []
        for message in dead:
            history = DeadLetterHistory(
                topic=self._topic.name,
                cause=cause,
                attempts=message.attempts,
                at=now,
                due=message.due if message.lease is not None and message.ts > now else message.ts,
                first_lease=message.first_lease,
                last_lease=message.last_lease,
                consumer=message.lock_consumer,
            )
            new_id = free_id(message.id, now, lambda one: self._goal.find(one) is not None)
            headers = history.headers(message.headers, renamed_from="" if new_id == message.id else message.id)
            moved.append(self._move(message, new_id, headers))
        return moved

    def redrive(self, ids: Sequence[str]) -> tuple[Outcomes, list[HeldMessage], list[HeldMessage]]:
        """Move dead letters back: the outcome of each id, the dead letters that left, and the messages that they
        became.
        """
        outcomes = Outcomes(len(ids))
        left: list[HeldMessage] = []
        came: list[HeldMessage] = []
        for row, message_id in enumerate(ids):
            message = self._timeline.find(message_id)
            code = transitions.decide_redrive(message.standing() if message else None, now=self._now)
            if message is None or code is not Code.OK:
                outcomes.codes[row] = code
                continue
            new_id = id_before(message_id, message.headers)
            if self._goal.find(new_id) is not None:
                outcomes.codes[row] = Code.ID_TAKEN
                continue
            left.append(message)
            came.append(self._move(message, new_id, without_history(message.headers)))
        return outcomes, left, came

    def _move(self, message: HeldMessage, new_id: str, headers: bytes) -> HeldMessage:
        self._timeline.remove(message)
        new = HeldMessage(
            id=new_id,
            natural=True,
            bucket=bucket_of(new_id, self._target.settings.buckets),
            owner=message.owner,
            ts=self._now,
            priority=message.priority,
            body=message.body,
            headers=headers,
            version=self._version,
        )
        self._goal.add(new)
        return new


def delays_of(settings: TopicSettings, messages: Sequence[HeldMessage]) -> list[int]:
    """How long each message waits after the end of its lost lease; 0 for a message that may not be leased again."""
    return [
        0
        if exhausted(message.attempts, settings.max_attempts)
        else expiry_delay_ms(settings, message.id, message.attempts)
        for message in messages
    ]
