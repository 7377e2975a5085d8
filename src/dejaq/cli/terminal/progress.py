"""A progress bar on stderr while a person watches; nothing at all otherwise."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID


class ProgressBar:
    """The progress of a long task, relative to `total` if that is known."""

    def __init__(self, label: str, total: int | None, *, quiet: bool = False) -> None:
        self._label = label
        self._total = total
        self._shown = not quiet and sys.stderr.isatty()
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> ProgressBar:
        if self._shown:
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as RichProgress

            self._bar = RichProgress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[note]}"),
                TimeElapsedColumn(),
                console=Console(file=sys.stderr),
                transient=True,
            )
            self._task = self._bar.add_task(self._label, total=self._total, note="")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def follow(self, total: int) -> Callable[[int, int | None], None]:
        """A function that receives the number of items done so far, of `total`."""
        done = 0

        def progress(count: int, _: int | None) -> None:
            nonlocal done
            self.advance(count - done, f"{count:,} of {total:,}")
            done = count

        return progress

    def advance(self, amount: int, note: str = "") -> None:
        """Move on by `amount` and show `note` beside the bar."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, advance=amount, note=note)
