"""A snapshot of the reference storage: a plain copy."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from dejaq.domain.batch import IdSpan, Portion, Stretch
from dejaq.domain.headers import encode_headers
from dejaq.domain.message import Message
from dejaq.storage.base import Filter


class MemorySnapshot:
    """The messages of a topic at one instant."""

    def __init__(self, messages: list[Message], now: int) -> None:
        self.at = now
        self.count = len(messages)
        self._messages = messages

    def close(self) -> None:
        """Drop the messages."""
        self._messages = []

    def scan_stored(self, buckets: Sequence[int], where: Filter, *, bodies: bool) -> AsyncIterator[Portion]:
        """The same as `scan`: this store has no runs."""
        return self.scan(buckets, where, bodies=bodies)

    async def scan(self, buckets: Sequence[int], where: Filter, *, bodies: bool) -> AsyncIterator[Portion]:
        """All matching messages, in one portion."""
        found = [
            message
            for message in self._messages
            if message.bucket in set(buckets)
            and where.start <= message.ts < where.end
            and where.status in (None, message.status(self.at))
            and where.owner in (None, message.producer_group)
            and where.consumer in (None, message.lock_consumer)
            and where.fits(message.priority, encode_headers(message.headers))
        ]
        if found:
            yield Portion(
                stretches=[
                    Stretch(
                        IdSpan(count=1, ids=[message.id]),
                        message.bucket,
                        message.producer_group,
                        message.version,
                        message.lock_consumer,
                    )
                    for message in found
                ],
                ts=[message.ts for message in found],
                bodies=[message.body for message in found] if bodies else None,
                priorities=[message.priority for message in found],
                attempts=[message.attempts for message in found],
                headers=[encode_headers(message.headers) for message in found],
            )
