"""Claims: records that say which broker works on something, so that one at a time does.

A claim is bound to its broker and ends with it. A broker whose membership expired has lost its claims. Each claim has a
value of its own, so that a broker never removes the claim that another broker made meanwhile.
"""

from __future__ import annotations

import logging
import secrets

from dejaq.errors import DejaqError
from dejaq.synchronization.base import Synchronization

log = logging.getLogger(__name__)


class Claims:
    """The claims of one broker under one prefix. A claim that could not be removed is removed by `tidy`."""

    def __init__(self, *, owner: str, synchronization: Synchronization, prefix: str) -> None:
        self._owner = owner
        self._synchronization = synchronization
        self._prefix = prefix
        self._held: dict[str, bytes] = {}
        # Claims that are given up and whose records may still exist.
        self._leftover: dict[str, bytes] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._held

    async def take(self, name: str) -> bool:
        """Claim `name`; False while this broker or another has it."""
        if name in self._held:
            return False
        value = f"{self._owner}/{secrets.token_hex(8)}".encode()
        self._held[name] = value
        try:
            await self._remove_leftover(name)
            record = await self._synchronization.put(
                self._prefix + name, value, expected=0, bound=True, comes_back=False
            )
        except BaseException:
            # Whether the record was written is unknown.
            del self._held[name]
            self._leftover[name] = value
            raise
        if record is None:
            del self._held[name]
        return record is not None

    async def holds(self, name: str) -> bool:
        """Whether the claim is still this broker's: it ends when the membership expires."""
        value = self._held.get(name)
        if value is None:
            return False
        record = await self._synchronization.get(self._prefix + name)
        return record is not None and record.value == value

    async def release(self, name: str) -> None:
        """Give a claim up; where its record cannot be removed now, `tidy` does it later."""
        value = self._held.pop(name, None)
        if value is None:
            return
        self._leftover[name] = value
        try:
            await self._remove_leftover(name)
        except DejaqError as error:
            log.warning("the claim on %s is removed later: %s", name, error)

    async def tidy(self) -> None:
        """Remove the records of claims that are given up; raises when the service does not answer."""
        for name in list(self._leftover):
            await self._remove_leftover(name)

    async def _remove_leftover(self, name: str) -> None:
        value = self._leftover.get(name)
        if value is None:
            return
        record = await self._synchronization.get(self._prefix + name)
        if record is not None and record.value == value:
            await self._synchronization.remove(record.key, expected=record.revision)
        if self._leftover.get(name) == value:
            del self._leftover[name]
