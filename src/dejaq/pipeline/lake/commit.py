"""A commit: which records are in the lake, and which files make up each table. The lake is its newest commit."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from dejaq.errors import PipelineError
from dejaq.pipeline.lake.ranges import Ranges

FORMAT = 3
# Of a commit that has the offsets of logs, which an earlier release would leave out of its next commit.
FORMAT_WITH_LOGS = 4
# Of a commit with events that wait, which an earlier release would never add to messages.
FORMAT_WITH_HELD = 5
# Lakes of these formats are read.
_FORMATS = (1, 2, FORMAT, FORMAT_WITH_LOGS, FORMAT_WITH_HELD)
# For so many commits it is known how far they reached.
_REACHED = 200
# Versions in names of files.
DIGITS = 12
# A partition (`day=2026-01-31`) and the files its rows are in, by their paths below the table's directory.
Partitions = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Commit:
    """One state of the lake."""

    version: int = 0
    written_ms: int = 0
    # The format it was written in.
    format: int = FORMAT
    # The lake's permanent name among all lakes, as a UUID.
    identity: str = ""
    # What was done, in the words of Delta: WRITE, OPTIMIZE (the same rows in other files), UPGRADE.
    operation: str = "WRITE"
    # For how long files are kept that a later commit does not need.
    keep_ms: int = 0
    events: int = 0
    # The time of the newest event, by origin.
    newest_ms: Mapping[str, int] = field(default_factory=dict)
    records: Mapping[str, Ranges] = field(default_factory=dict)
    # The first record of each origin whose history does not begin with record 1.
    begins: Mapping[str, int] = field(default_factory=dict)
    # The store of each origin, where several brokers share one.
    stores: Mapping[str, str] = field(default_factory=dict)
    # By store that brokers share: the greatest ticket in the lake, and the first one whose events wait in `held`.
    tickets: Mapping[str, int] = field(default_factory=dict)
    held_from: Mapping[str, int] = field(default_factory=dict)
    # The time of the newest event in some of the last commits, by their versions.
    reached: Mapping[int, int] = field(default_factory=dict)
    tables: Mapping[str, Partitions] = field(default_factory=dict)
    # Of each log that is kept: the next offset of each bucket.
    log_offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)

    @property
    def reached_ms(self) -> int:
        """The time of the newest event, or 0."""
        return max(self.newest_ms.values(), default=0)

    def batches(self, table: str) -> set[str]:
        """The directories in which a table's files are."""
        return {file.partition("/")[0] for file in self.files(table)}

    def files(self, table: str) -> list[str]:
        """Where a table's rows are."""
        return [file for found in self.tables.get(table, {}).values() for file in found]

    def partitions(self, table: str) -> Partitions:
        """The partitions of a table."""
        return self.tables.get(table, {})

    def store_of(self, origin: str) -> str:
        """The store of an origin, which has that name itself when no other broker uses it."""
        return self.stores.get(origin, origin)

    def origins_of(self, store: str) -> list[str]:
        """The origins whose journals contain events of a store."""
        return [origin for origin in self.records if self.store_of(origin) == store]

    def files_since(self, table: str, ms: int) -> list[str]:
        """The files of a table that may have rows that changed at this time or later."""
        before = max((version for version, newest in self.reached.items() if newest < ms), default=0)
        return [file for file in self.files(table) if version_of(file) > before]

    def with_reached(self, version: int) -> Commit:
        """The same, knowing how far the commit of this version reaches."""
        kept = dict(sorted({**self.reached, version: self.reached_ms}.items())[-_REACHED:])
        return replace(self, version=version, reached=kept)

    def with_table(
        self, table: str, *, replaced: Iterable[str] = (), dropped: Iterable[str] = (), added: Iterable[str] = ()
    ) -> Commit:
        """The state in which partitions have lost what they held, files are gone, and others were added to theirs."""
        gone, without = set(replaced), set(dropped)
        partitions = {
            name: tuple(file for file in found if file not in without)
            for name, found in self.partitions(table).items()
            if name not in gone
        }
        for file in added:
            name = file.partition("/")[2].rpartition("/")[0]
            partitions[name] = (*partitions.get(name, ()), file)
        held = {name: found for name, found in sorted(partitions.items()) if found}
        return replace(self, tables={**self.tables, table: held})

    def _format(self) -> int:
        if self.files("held"):
            return FORMAT_WITH_HELD
        return FORMAT_WITH_LOGS if self.log_offsets else FORMAT

    def to_json(self) -> bytes:
        """As it stands in its file."""
        values = {
            "format": self._format(),
            "version": self.version,
            "written_ms": self.written_ms,
            "identity": self.identity,
            "operation": self.operation,
            "keep_ms": self.keep_ms,
            "events": self.events,
            "newest_ms": dict(self.newest_ms),
            "records": {origin: ranges.pairs for origin, ranges in self.records.items()},
            "begins": dict(self.begins),
            "stores": dict(self.stores),
            "tickets": dict(self.tickets),
            "held_from": dict(self.held_from),
            "reached": {str(version): newest for version, newest in self.reached.items()},
            "tables": {name: dict(partitions) for name, partitions in self.tables.items()},
            "log_offsets": {
                topic: {str(bucket): offset for bucket, offset in offsets.items()}
                for topic, offsets in self.log_offsets.items()
            },
        }
        return json.dumps(values, indent=1, sort_keys=True).encode("utf-8") + b"\n"

    @classmethod
    def from_json(cls, content: bytes, name: str) -> Commit:
        """What a file says; raises PipelineError when it is not a commit that this release can read."""
        try:
            values = json.loads(content)
            if values["format"] not in _FORMATS:
                raise PipelineError(
                    f"{name} has format {values['format']}; this release reads up to {FORMAT_WITH_HELD}"
                )
            return cls(
                version=int(values["version"]),
                written_ms=int(values["written_ms"]),
                format=int(values["format"]),
                identity=str(values.get("identity", "")),
                operation=str(values.get("operation", "WRITE")),
                keep_ms=int(values.get("keep_ms", 0)),
                events=int(values["events"]),
                newest_ms=values["newest_ms"],
                records={origin: Ranges.of(pairs) for origin, pairs in values["records"].items()},
                begins=values.get("begins", {}),
                stores=values.get("stores", {}),
                tickets=values.get("tickets", {}),
                held_from=values.get("held_from", {}),
                reached={int(version): newest for version, newest in values.get("reached", {}).items()},
                tables={
                    table: {part: tuple(found) for part, found in partitions.items()}
                    for table, partitions in values["tables"].items()
                },
                log_offsets={
                    topic: {int(bucket): offset for bucket, offset in offsets.items()}
                    for topic, offsets in values.get("log_offsets", {}).items()
                },
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            raise PipelineError(f"{name} is damaged: it is not a commit of a lake") from None


def batch_of(version: int, name: str) -> str:
    """The directory that the batch of a commit writes."""
    return f"batch={version:0{DIGITS}d}-{name}"


def is_unfinished(batch: str, version: int) -> bool:
    """Whether a directory is not of a batch that was committed up to a version."""
    number = batch.partition("=")[2][:DIGITS]
    return not number.isdigit() or int(number) > version


def version_of(file: str) -> int:
    """The commit whose batch wrote a file."""
    return int(file.partition("=")[2][:DIGITS])
