"""The Delta log of one table: its version n is what the table is at commit n of the lake.

The log is a copy of the lake's commits for other engines. It is written after the commit and never read for the lake
itself, so a log that is behind, damaged or gone is written again from the commits.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dejaq.crashpoints import crash_at
from dejaq.pipeline.delta import actions
from dejaq.pipeline.delta.actions import Action, DataFile
from dejaq.pipeline.delta.checkpoint import from_parquet, last_checkpoint, to_parquet
from dejaq.pipeline.delta.statistics import rows_in, statistics_of, within
from dejaq.pipeline.lake.commit import Commit
from dejaq.pipeline.lake.files import Files
from dejaq.pipeline.lake.tables import Table

# A reader reads the newest checkpoint and the versions behind it, at most so many.
VERSIONS_PER_CHECKPOINT = 20
DIGITS = 20


@dataclass(slots=True)
class _LogVersions:
    """Which versions the directory of a log contains."""

    # No version before this one.
    first: int
    # Those with a checkpoint, in ascending order.
    checkpoints: list[int]


@dataclass(slots=True)
class _LogState:
    """What the log says a table is."""

    version: int
    # The newest version with a checkpoint.
    checkpoint: int = -1
    schema: str = ""
    files: dict[str, DataFile] = field(default_factory=dict)


class DeltaLog:
    """The log of a table."""

    def __init__(self, files: Files, table: Table) -> None:
        self._files, self._table = files, table
        self._directory = f"{table.name}/_delta_log"
        self._state: _LogState | None = None
        self._read_only: _LogState | None = None
        # None until the first commit, which lists the directory. Later commits do not: it contains every version kept.
        self._kept: _LogVersions | None = None

    @property
    def name(self) -> str:
        """The name of the table."""
        return self._table.name

    @property
    def is_optional(self) -> bool:
        """Whether a lake may be without the table."""
        return self._table.optional

    @property
    def version(self) -> int:
        """The newest version, or -1. A lake that keeps thousands of commits is listed once, and not at each commit."""
        return self._state.version if self._state is not None else max(self._versions(".json"), default=-1)

    def publish(self, commit: Commit) -> None:
        """Write the version of a commit, if it is not there yet."""
        state = self._state or self._read()
        paths = set(commit.files(self._table.name))
        if state is not None and state.version == commit.version and state.files.keys() == paths:
            self._state = state
            return
        if state is None and commit.version == 1:
            state = self._create(commit)
        if state is None or state.version != commit.version - 1:
            self._state = self._begin(commit)
            return
        self._state = None
        self._files.write_new(self._name(commit.version, ".json"), actions.lines(self._change(state, commit)))
        crash_at(f"pipeline.delta_{self._table.name}")
        state.version = commit.version
        if state.version - state.checkpoint >= VERSIONS_PER_CHECKPOINT:
            self._checkpoint(state, commit)
        self._state = state

    def may_contain(self, path: str, column: str, first: int, end: int) -> bool:
        """Whether a file may have a value of a column from `first` to below `end`; True where that is not known."""
        least, greatest = self.extent(path, column)
        return (least is None or least < end) and (greatest is None or greatest >= first)

    def extent(self, path: str, column: str) -> tuple[int | None, int | None]:
        """The least and the greatest value of a column in a file; None where that is not known or all are null."""
        stats = self._stats(path)
        return (None, None) if stats is None else within(stats, column)

    def rows(self, path: str) -> int | None:
        """The number of rows in a file; None if that is not known."""
        stats = self._stats(path)
        return None if stats is None else rows_in(stats)

    def _stats(self, path: str) -> str | None:
        state = self._state
        if state is None:
            # A lake that is open for reading only. What is known of a file never changes.
            self._read_only = state = self._read_only or self._read() or _LogState(-1)
        file = state.files.get(path)
        return None if file is None else file.stats

    def clear_away(self, before: int) -> None:
        """Remove what no version from `before` on needs."""
        if self._kept is None:
            checkpoints = sorted(self._versions(".checkpoint.parquet"))
            self._kept = _LogVersions(min([*self._versions(".json"), *checkpoints], default=0), checkpoints)
        kept = self._kept
        base = max((version for version in kept.checkpoints if version <= before), default=-1)
        for version in range(kept.first, base):
            self._files.remove(self._name(version, ".json"))
        while kept.checkpoints and kept.checkpoints[0] < base:
            self._files.remove(self._name(kept.checkpoints.pop(0), ".checkpoint.parquet"))
        kept.first = max(kept.first, base)

    # Writing

    def _create(self, commit: Commit) -> _LogState:
        """Version 0, an empty table, of a lake that begins."""
        state = _LogState(0, checkpoint=0, schema=actions.schema_string(self._table))
        self._files.make(self._directory)
        content = actions.lines([actions.written(0, commit.written_ms, "CREATE TABLE")[0], *self._head(state, commit)])
        self._files.write_new(self._name(0, ".json"), content)
        crash_at("pipeline.delta_created")
        return state

    def _begin(self, commit: Commit) -> _LogState:
        """A log that begins with a commit: the lake is older than its log, or the log is not ours or not whole."""
        self._kept = None
        for name in self._files.list(self._directory):
            self._files.remove(f"{self._directory}/{name}")
        self._files.make(self._directory)
        state = _LogState(commit.version, schema=actions.schema_string(self._table))
        self._change(state, commit)
        # With the checkpoint the version is there; a reader that comes before finds no table rather than a part of it.
        self._checkpoint(state, commit)
        crash_at("pipeline.delta_begun")
        info = actions.written(commit.version, commit.written_ms, "CREATE TABLE")
        added = [actions.add(file, data_change=True) for file in state.files.values()]
        content = actions.lines([*info, *self._head(state, commit), *added])
        self._files.write_new(self._name(commit.version, ".json"), content)
        return state

    def _change(self, state: _LogState, commit: Commit) -> list[Action]:
        """The actions from a state to a commit; the state has its files afterwards."""
        wanted = commit.files(self._table.name)
        kept, changes = set(wanted), commit.operation != "OPTIMIZE"
        found = list(actions.written(commit.version, commit.written_ms, commit.operation))
        schema = actions.schema_string(self._table)
        if schema != state.schema:
            state.schema = schema
            found.append(self._metadata(state, commit))
        for path in [path for path in state.files if path not in kept]:
            found.append(actions.remove(state.files.pop(path), commit.written_ms, data_change=changes))
        for path in wanted:
            if path not in state.files:
                state.files[path] = self._data_file(path, commit)
                found.append(actions.add(state.files[path], data_change=changes))
        return found

    def _data_file(self, path: str, commit: Commit) -> DataFile:
        name = f"{self._table.name}/{path}"
        # Footers of files elsewhere would have to be read through the JVM, byte by byte.
        stats = None if self._files.local is None else statistics_of(self._files.local / name)
        return DataFile(path, self._files.size(name), commit.written_ms, stats)

    def _head(self, state: _LogState, commit: Commit) -> list[Action]:
        return [actions.protocol(), self._metadata(state, commit)]

    def _metadata(self, state: _LogState, commit: Commit) -> Action:
        return actions.metadata(self._table, state.schema, identity=commit.identity, created_ms=commit.written_ms)

    def _checkpoint(self, state: _LogState, commit: Commit) -> None:
        # Without the removed files: no other program may remove files, so none needs to know when they went.
        held = [actions.add(file, data_change=False) for file in state.files.values()]
        everything = [*self._head(state, commit), actions.written(commit.version, commit.written_ms, "")[1], *held]
        self._files.put(self._name(state.version, ".checkpoint.parquet"), to_parquet(everything))
        self._files.put(f"{self._directory}/_last_checkpoint", last_checkpoint(state.version, len(everything)))
        state.checkpoint = state.version
        if self._kept is not None:
            self._kept.checkpoints.append(state.version)

    # Reading

    def _name(self, version: int, ending: str) -> str:
        return f"{self._directory}/{version:0{DIGITS}d}{ending}"

    def _versions(self, ending: str) -> list[int]:
        names = (name for name in self._files.list(self._directory) if name.endswith(ending))
        return [int(name[:DIGITS]) for name in names if name[:DIGITS].isdigit() and name == name[:DIGITS] + ending]

    def _read(self) -> _LogState | None:
        """What the log says, if it is whole and this pipeline wrote all of it."""
        checkpoint = max(self._versions(".checkpoint.parquet"), default=-1)
        try:
            state = _LogState(checkpoint, checkpoint=checkpoint)
            if checkpoint >= 0:
                held = self._files.read(self._name(checkpoint, ".checkpoint.parquet"))
                _apply(state, from_parquet(held))
            for version in [version for version in self._versions(".json") if version > checkpoint]:
                found = actions.parsed(self._files.read(self._name(version, ".json")))
                if version != state.version + 1 or not _is_ours(found):
                    return None
                _apply(state, found)
                state.version = version
        except (ValueError, KeyError, TypeError):
            return None
        # A checkpoint without its version is one that was begun and not finished.
        return state if state.version >= 0 and state.version == max(self._versions(".json"), default=-1) else None


def _is_ours(found: list[Action]) -> bool:
    return any(action.get("commitInfo", {}).get("engineInfo") == actions.APPLICATION for action in found)


def _apply(state: _LogState, found: list[Action]) -> None:
    for action in found:
        if "metaData" in action:
            state.schema = str(action["metaData"]["schemaString"])
        elif "remove" in action:
            state.files.pop(actions.decoded(action["remove"]["path"]), None)
        elif "add" in action:
            file = actions.file_of(action["add"])
            state.files[file.path] = file
