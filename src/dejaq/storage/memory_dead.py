"""Dead letters of the memory store: moves from one timeline to another."""

from __future__ import annotations

from collections.abc import Sequence

from dejaq.domain import transitions
from dejaq.domain.batch import Outcomes
from dejaq.domain.dead_letter import Death, exhausted, expiry_delay_ms, free_id, id_before, without_history
from dejaq.domain.ids import bucket_of
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.errors import Code
from dejaq.storage.memory_timeline import HeldMessage, Timeline


class Passage:
    """A way from the timeline of one topic to that of another, for one change at one time."""

    def __init__(
        self, topic: Topic, timeline: Timeline, target: Topic, goal: Timeline, *, version: int, now: int
    ) -> None:
        self._topic, self._timeline = topic, timeline
        self._target, self._goal = target, goal
        self._version, self._now = version, now

    def bury(self, dead: Sequence[HeldMessage], reason: str) -> list[HeldMessage]:
        """Move messages to the dead-letter topic; what they are there."""
        now = self._now
        buried: list[HeldMessage] = []
        for message in dead:
            death = Death(
                topic=self._topic.name,
                reason=reason,
                attempts=message.attempts,
                at=now,
                due=message.due if message.lease is not None and message.ts > now else message.ts,
                first_lease=message.first_lease,
                last_lease=message.last_lease,
                consumer=message.lock_consumer,
            )
            new_id = free_id(message.id, now, lambda one: self._goal.find(one) is not None)
            headers = death.headers(message.headers, renamed_from="" if new_id == message.id else message.id)
            buried.append(self._move(message, new_id, headers))
        return buried

    def redrive(self, ids: Sequence[str]) -> tuple[Outcomes, list[HeldMessage], list[HeldMessage]]:
        """Move messages back to life: the outcome of each id, what left, and what it is there."""
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
    """How long each message waits behind the end of its lost lease; what may have no other lease waits for nothing."""
    return [
        0
        if exhausted(message.attempts, settings.max_attempts)
        else expiry_delay_ms(settings, message.id, message.attempts)
        for message in messages
    ]
