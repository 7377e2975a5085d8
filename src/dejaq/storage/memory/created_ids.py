"""The natural ids that were created within the deduplication window of a topic, in memory."""

from __future__ import annotations

from dejaq.domain.topic import TopicSettings


class MemoryCreatedIds:
    """Ids with the times of their creation; a topic without a window remembers none."""

    def __init__(self, window_ms: int) -> None:
        self._window_ms = window_ms
        # The order of the dictionary is the order of creation.
        self._created: dict[str, int] = {}

    def has(self, message_id: str, now: int) -> bool:
        """Whether an id was created within the window."""
        created = self._created.get(message_id)
        return created is not None and now - created < self._window_ms

    def add(self, message_id: str, now: int) -> None:
        """Remember an id that is created now."""
        if self._window_ms:
            self._created.pop(message_id, None)
            self._created[message_id] = now

    def room(self, settings: TopicSettings, now: int) -> int | None:
        """How many more ids can be remembered; None for any number. Older ones are forgotten."""
        if not self._window_ms:
            return None
        while self._created and not self.has(oldest := next(iter(self._created)), now):
            del self._created[oldest]
        return max(0, settings.max_dedup_ids - len(self._created))
