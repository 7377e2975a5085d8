"""Writes the outcomes of the rows of a task as files of JSON lines: for every row, or for the refused rows only."""

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
    """The files of one task. Their names are the same in a retried task, and each file appears when it is complete.

    Until then each attempt writes to a file of its own, because two attempts of a task may run at the same time.
    """

    def __init__(self, options: Options, name: str, *, attempt: int = 0) -> None:
        self._options = options
        self._name = name
        self._attempt = attempt
        self._all: TextIO | None = None
        self._opened = ExitStack()

    def __enter__(self) -> OutcomeFiles:
        if self._options.outcomes_path:
            self._all = self._opened.enter_context(self._aside(self._options.outcomes_path, "outcomes").open("w"))
        return self

    def add(self, rows: Iterable[tuple[str | None, str, str]]) -> None:
        """Write the id, the outcome and, where it exists, the reason of rows."""
        assert self._all is not None
        operation = self._options.operation
        for message_id, outcome, reason in rows:
            line = {"id": message_id, "operation": operation, "outcome": outcome, "reason": reason}
            self._all.write(json.dumps(line) + "\n")

    def refused(self, bad: list[BadRow]) -> None:
        """Keep the refused rows, when the options ask for it."""
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
        # Spark's readers ignore files whose names begin with a dot.
        return Path(directory) / f".{what}-{self._name}-{self._attempt}.tmp"
