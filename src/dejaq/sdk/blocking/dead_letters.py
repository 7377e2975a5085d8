"""Generated from `dejaq.sdk.admin.dead_letters` by `scripts/generate_sync.py`; edit that module, not this one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dejaq.domain.message import Message
from dejaq.sdk.admin.dead_letters import DeadLetters as AsyncDeadLetters
from dejaq.sdk.blocking.portal import Blocking, each
from dejaq.sdk.changing.bulk import BulkResult, OnProgress
from dejaq.sdk.times import At


class DeadLetters(Blocking[AsyncDeadLetters]):
    """Messages of one topic that were leased too often or rejected. Create it with `client.dead_letters`.

    They are ordinary messages of the dead-letter topic. This class finds them by their original topic, also when
    several topics share one dead-letter topic, and changes them whichever group owns them.
    """

    __slots__ = ()

    @property
    def topic(self) -> str:
        """The topic of this deadletters."""
        return self._inner.topic

    def where(self) -> str:
        """The name of the dead-letter topic; for a deleted topic, the default name."""
        return self._portal.run(self._inner.where())

    def count(
        self,
        *,
        start: At | None = None,
        end: At | None = None,
        reason: str | None = None,
        group: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        """The number of dead letters that failed from `start` to before `end`, with this reason, owner and headers."""
        return self._portal.run(self._inner.count(start=start, end=end, reason=reason, group=group, headers=headers))

    def browse(
        self,
        *,
        start: At | None = None,
        end: At | None = None,
        reason: str | None = None,
        group: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[list[Message]]:
        """Pages of dead letters, oldest first; the headers that begin with `dejaq-dead-` describe their history."""
        return each(self._inner.browse(start=start, end=end, reason=reason, group=group, headers=headers), self._portal)

    def redrive(
        self,
        ids: Sequence[str] | None = None,
        *,
        to: str | None = None,
        progress: OnProgress | None = None,
        start: At | None = None,
        end: At | None = None,
        reason: str | None = None,
        group: str | None = None,
        headers: Mapping[str, str] | None = None,
        results: bool = False,
    ) -> BulkResult:
        """Move dead letters to `to` or back, due now, with zero attempts: those in `ids`, or all that match.

        With `ids` it raises when any of them is refused, and the error lists all that were, as `failed`; the others are
        moved. With `results=True`, and for a filter, the result counts the refusals instead.
        """
        return self._portal.follow(
            self._inner.redrive(
                ids,
                to=to,
                progress=progress,
                start=start,
                end=end,
                reason=reason,
                group=group,
                headers=headers,
                results=results,
            )
        )

    def purge(
        self,
        ids: Sequence[str] | None = None,
        *,
        progress: OnProgress | None = None,
        start: At | None = None,
        end: At | None = None,
        reason: str | None = None,
        group: str | None = None,
        headers: Mapping[str, str] | None = None,
        results: bool = False,
    ) -> BulkResult:
        """Remove dead letters permanently: those in `ids`, or all that match. Raises as `redrive` does."""
        return self._portal.follow(
            self._inner.purge(
                ids,
                progress=progress,
                start=start,
                end=end,
                reason=reason,
                group=group,
                headers=headers,
                results=results,
            )
        )
