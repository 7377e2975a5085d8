"""What a watcher knows of a prefix: changes applied one by one, or found by comparing with a fresh reading."""

from __future__ import annotations

from collections.abc import Iterable

from dejaq.synchronization.base import Record, RecordChange


class Mirror:
    """The records under one prefix, as reported so far."""

    def __init__(self) -> None:
        self.records: dict[str, Record] = {}

    def apply(self, changes: Iterable[RecordChange]) -> list[RecordChange]:
        """Take changes; gives those that are news."""
        return [change for change in changes if self._take(change)]

    def reload(self, records: Iterable[Record]) -> list[RecordChange]:
        """Take the whole contents; gives what differs from what was known."""
        fresh = {record.key: record for record in records}
        changes = [RecordChange(key, None) for key in self.records if key not in fresh]
        changes += [RecordChange(key, record) for key, record in fresh.items()]
        return self.apply(changes)

    def _take(self, change: RecordChange) -> bool:
        known = self.records.get(change.key)
        if change.record is None:
            return self.records.pop(change.key, None) is not None
        if known is not None and known.revision >= change.record.revision:
            return False
        self.records[change.key] = change.record
        return True
