"""Generated from `dejaq.sdk.admin.cron` by `scripts/generate_sync.py`; edit that module, not this one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Unpack

from dejaq.sdk.admin.cron import Cron as AsyncCron
from dejaq.sdk.admin.cron import Schedule, ScheduleFields, ScheduleInfo
from dejaq.sdk.blocking.portal import Blocking, each


class Cron(Blocking[AsyncCron]):
    """The schedules of one cron topic. Create it with `client.cron`."""

    __slots__ = ()

    @property
    def topic(self) -> str:
        """The topic of this cron."""
        return self._inner.topic

    def add(
        self,
        name: str,
        expression: str,
        body: str | bytes | None = None,
        *,
        replace: bool = False,
        **fields: Unpack[ScheduleFields],
    ) -> ScheduleInfo:
        """Add a schedule; the fields are those of `dejaq.Schedule`.

        A repeated call with the same fields changes nothing; a call with other fields raises ID_TAKEN. With `replace`
        the call changes the schedule of this name: the given fields change, and all other fields keep their values.
        """
        return self._portal.run(self._inner.add(name, expression, body, replace=replace, **fields))

    def add_many(self, schedules: Iterable[Schedule], *, replace: bool = False) -> list[ScheduleInfo]:
        """Add schedules in groups of a thousand, each group completely or not at all; `replace` works as in `add`."""
        return self._portal.follow(self._inner.add_many(schedules, replace=replace))

    def get(self, name: str) -> ScheduleInfo | None:
        """One schedule; None when no schedule has this name."""
        return self._portal.run(self._inner.get(name))

    def all(self) -> Iterator[ScheduleInfo]:
        """Every schedule, ordered by the next time at which it runs."""
        return each(self._inner.all(), self._portal)

    def pause(self, name: str) -> ScheduleInfo:
        """Create no more occurrences, and cancel those that were prepared and are not yet due."""
        return self._portal.run(self._inner.pause(name))

    def resume(self, name: str) -> ScheduleInfo:
        """Continue with the next occurrence in the future; occurrences during the pause are not created later."""
        return self._portal.run(self._inner.resume(name))

    def run(self, name: str) -> str:
        """Create one occurrence now, in addition to the regular ones; returns its id."""
        return self._portal.run(self._inner.run(name))

    def remove(self, name: str) -> bool:
        """Delete a schedule, and cancel its occurrences that are prepared and not yet due.

        Returns False when no schedule has this name.
        """
        return self._portal.run(self._inner.remove(name))

    def next(self, name: str, count: int = 5) -> list[datetime]:
        """The next times of a schedule."""
        return self._portal.run(self._inner.next(name, count))

    def preview(self, expression: str, count: int = 5, **fields: Unpack[ScheduleFields]) -> list[datetime]:
        """The next times of a schedule that has not been added."""
        return self._portal.run(self._inner.preview(expression, count, **fields))

    def history(self, name: str) -> tuple[tuple[datetime, str], ...]:
        """The last occurrences, oldest first: their times, and whether each was created, overlapped, missed or run by
        hand.
        """
        return self._portal.run(self._inner.history(name))
