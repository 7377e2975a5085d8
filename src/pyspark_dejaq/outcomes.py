"""What became of the rows of a task, as files of JSON lines: of every row, or of those that were refused."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TextIO

from pyspark_dejaq.options import Options
from pyspark_dejaq.rows import BadRow


class OutcomeFiles:
    """The files of one task. They have names that a retried task repeats, and appear when they are whole."""

    def __init__(self, options: Options, name: str) -> None:
        self._options = options
        self._name = name
        self._all: TextIO | None = None
        self._opened = ExitStack()

    def __enter__(self) -> OutcomeFiles:
        if self._options.outcomes_path:
            self._all = self._opened.enter_context(self._aside(self._options.outcomes_path, "outcomes").open("w"))
        return self

    def add(self, rows: Iterable[tuple[str, str, str]]) -> None:
        """Tell the id, the outcome and, where there is one, the reason of rows."""
        assert self._all is not None
        operation = self._options.operation
        for message_id, outcome, reason in rows:
            line = {"id": message_id, "operation": operation, "outcome": outcome, "reason": reason}
            self._all.write(json.dumps(line) + "\n")

    def refused(self, bad: list[BadRow]) -> None:
        """Keep the rows that were not taken, where the options ask for it."""
        if not bad or self._options.mode != "collect":
            return
        aside = self._aside(self._options.bad_rows_path, "refused")
        aside.write_text("".join(json.dumps({"id": row.id, "reason": row.reason}) + "\n" for row in bad))
        aside.replace(self._place(self._options.bad_rows_path, "refused"))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()
        if self._all is not None:
            path = self._options.outcomes_path
            self._aside(path, "outcomes").replace(self._place(path, "outcomes"))

    def _place(self, directory: str, what: str) -> Path:
        return Path(directory) / f"{what}-{self._name}.jsonl"

    def _aside(self, directory: str, what: str) -> Path:
        Path(directory).mkdir(parents=True, exist_ok=True)
        # Spark's readers leave out what begins with a dot.
        return Path(directory) / f".{what}-{self._name}.tmp"
