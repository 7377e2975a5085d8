"""The numbers of the producer groups of a topic: the key of a run contains the number of its owner."""

from __future__ import annotations

from dejaq import limits
from dejaq.domain.topic import Topic
from dejaq.errors import Code, error_of
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import Batch, RocksDatabase

# So many names are kept, whether or not they have messages.
_KEPT = 1_000


class Owners:
    """Assigns numbers to producer groups, and forgets the groups of a topic that is empty."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._numbers: dict[str, int] = {}
        self._names: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def load(self, database: RocksDatabase) -> None:
        """Read the numbers."""
        prefix = keys.of_topic(keys.OWNER, self._topic.number)
        for key, value in database.scan(prefix, keys.after(prefix)):
            self._enter(value.decode(), int.from_bytes(key[5:], "big"))

    def check(self, name: str, messages: int) -> None:
        """Raise LIMIT_EXCEEDED for a group above the limit; the groups of a topic without messages do not count."""
        if messages and len(self._numbers) >= limits.PRODUCER_GROUPS_MAX and name not in self._numbers:
            raise error_of(
                Code.LIMIT_EXCEEDED,
                f"topic {self._topic.name!r} knows {len(self._numbers):,} producer groups; send with fewer of them",
            )

    def forget(self, messages: int, batch: Batch) -> None:
        """Forget the groups of a topic without messages, when there are many."""
        if not messages and len(self._numbers) > _KEPT:
            prefix = keys.of_topic(keys.OWNER, self._topic.number)
            batch.delete_range(prefix, keys.after(prefix))
            self._numbers.clear()
            self._names.clear()

    def number(self, name: str, batch: Batch) -> int:
        """The number of a group; assigned at its first message."""
        number = self._numbers.get(name)
        if number is None:
            number = len(self._numbers) + 1
            self._enter(name, number)
            batch.put(keys.owner(self._topic.number, number), name.encode())
        return number

    def known(self, name: str) -> int | None:
        """The number of a group that has sent messages to this topic."""
        return self._numbers.get(name)

    def name(self, number: int) -> str:
        """The name with this number."""
        return self._names[number]

    def _enter(self, name: str, number: int) -> None:
        self._numbers[name] = number
        self._names[number] = name
