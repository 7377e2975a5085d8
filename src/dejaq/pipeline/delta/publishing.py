"""Publishing commits of the lake to the Delta logs of its tables.

Every commit becomes one version of every table, also of one that did not change, under the commit's own number. So the
tables at one version are the lake at one commit, and a reader of several tables who takes the least of their newest
versions reads them as they were together.
"""

from __future__ import annotations

from collections.abc import Sequence

from dejaq.pipeline.delta.log import DeltaLog
from dejaq.pipeline.lake.commit import Commit
from dejaq.pipeline.lake.files import Files
from dejaq.pipeline.lake.tables import TABLES


class DeltaLogs:
    """The logs of all tables of a lake."""

    def __init__(self, files: Files) -> None:
        self._by_table = {table.name: DeltaLog(files, table) for table in TABLES.values()}
        self._logs = list(self._by_table.values())

    @property
    def version(self) -> int:
        """The newest version that every table has, or -1."""
        return min(version for log in self._logs if (version := log.version) >= 0 or not log.is_optional)

    def publish(self, commits: Sequence[Commit]) -> None:
        """Write the versions of commits, given in their order, that the logs do not have yet.

        A log that has the last of them already is compared with it, and written again where it differs.
        """
        for log in self._logs:
            there = log.version
            if there < 0 and log.is_optional and not commits[-1].files(log.name):
                continue
            for commit in [commit for commit in commits if commit.version > there] or commits[-1:]:
                log.publish(commit)

    def may_contain(self, table: str, path: str, column: str, first: int, end: int) -> bool:
        """Whether a file may have a value of a column from `first` to below `end`, by its published statistics."""
        return self._by_table[table].may_contain(path, column, first, end)

    def extent(self, table: str, path: str, column: str) -> tuple[int | None, int | None]:
        """The least and the greatest value of a column in a file, by its published statistics; None if not known."""
        return self._by_table[table].extent(path, column)

    def rows(self, table: str, path: str) -> int | None:
        """The number of rows in a file, by its published statistics; None if not known."""
        return self._by_table[table].rows(path)

    def clear_away(self, before: int) -> None:
        """Remove from the logs what no version from `before` on needs."""
        for log in self._logs:
            log.clear_away(before)
