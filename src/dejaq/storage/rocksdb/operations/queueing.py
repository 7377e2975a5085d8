"""Creates wait while the disk or the merges are hopelessly behind, and nothing of a producer overtakes them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from dejaq.domain.changes import Cancel, Change, Create, Edit
from dejaq.storage.rocksdb.engine.committer import Committer
from dejaq.storage.rocksdb.timeline.levels.merger import Merger


class ProducerQueue:
    """The changes of producers that wait. The requests of a session take effect in the order of their arrival."""

    def __init__(self, committer: Committer, merger: Merger) -> None:
        self._committer, self._merger = committer, merger
        self._last: asyncio.Future[None] | None = None

    async def make_room(self, changes: Sequence[Change]) -> None:
        """Wait before the changes are applied, if they have to wait."""
        if not any(isinstance(change, Create | Edit | Cancel) for change in changes):
            return
        before = self._last
        if before is None and not self._committer.crowded and not self._merger.behind:
            return
        mine = self._last = asyncio.get_running_loop().create_future()
        try:
            await self._committer.make_room()
            await self._merger.make_room(changes)
            if before is not None:
                await asyncio.wait([before])
        finally:
            mine.set_result(None)
            if self._last is mine:
                self._last = None
