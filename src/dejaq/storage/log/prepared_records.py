"""The prepared transactions of a store that has all of them in memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from dejaq.domain.topic import Topic
from dejaq.errors import Code, error_of
from dejaq.storage.log.prepared import PreparedState, PreparedTransaction, held_by, is_repeat


@dataclass(slots=True)
class PreparedRecords:
    """The transactions by the number of their log and their name."""

    records: dict[tuple[int, str], PreparedTransaction] = field(default_factory=dict)

    def in_doubt(self, topic: int) -> list[PreparedTransaction]:
        """Those of a log that are not resolved, in the order of their names."""
        found = (one for (number, _), one in sorted(self.records.items()) if number == topic)
        return [one for one in found if one.state is PreparedState.IN_DOUBT]

    def is_repeat(self, topic: Topic, name: str, check: int) -> bool:
        """Whether the same transaction was prepared before; raises for a name that is taken, and above the limit."""
        known = self.records.get((topic.number, name))
        return is_repeat(known, len(self.in_doubt(topic.number)), name, check)

    def found(self, topic: Topic, name: str) -> PreparedTransaction:
        """The transaction of a name; raises NOT_FOUND."""
        record = self.records.get((topic.number, name))
        if record is None:
            raise error_of(Code.NOT_FOUND, f"no transaction of {topic.name!r} is prepared under the name {name!r}")
        return record

    def check_free(self, topic: int, group: str, buckets: Iterable[int]) -> None:
        """Raise UNAVAILABLE when a transaction in doubt commits one of the buckets for the group."""
        asked = set(buckets)
        for record in self.records.values():
            if record.state is PreparedState.IN_DOUBT:
                for one in record.commits:
                    if (one.topic, one.group) == (topic, group) and one.bucket in asked:
                        raise held_by(record.name)

    def forgettable(self, topic: int, now: int) -> list[str]:
        """The names of a log whose outcome need not be known any more."""
        return [name for (number, name), one in self.records.items() if number == topic and one.forgotten(now)]
