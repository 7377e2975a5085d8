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

    @property
    def free(self) -> bool:
        """Whether a change of a producer need not wait."""
        return self._last is None and not self._committer.crowded and not self._merger.behind

    async def make_room(self, changes: Sequence[Change]) -> None:
        """Wait before the changes are applied, if they have to wait."""
        if not any(isinstance(change, Create | Edit | Cancel) for change in changes):
            return
        if self.free:
            return
        before = self._last
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
