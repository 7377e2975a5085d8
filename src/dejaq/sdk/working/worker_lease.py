"""The lease that a worker's async function gets: it detects calls that the function did not await."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from datetime import timedelta
from typing import Any

from dejaq.errors import Code, error_of
from dejaq.sdk.consuming.lease import Lease
from dejaq.sdk.times import At, Delay


class _Call:
    """One call of a lease: whether it is awaited, and whether it has ended."""

    __slots__ = ("_work", "ended", "name", "started")

    def __init__(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        self.name = name
        self._work = work
        self.started = False
        self.ended = asyncio.Event()

    async def run(self) -> None:
        """Make the call."""
        self.started = True
        try:
            await self._work
        finally:
            self.ended.set()

    def drop(self) -> None:
        """Cancel the call, which nobody will await."""
        self._work.close()


class WatchedLease(Lease):
    """A lease for an async function, which detects when one of its calls was made and not awaited."""

    __slots__ = ("_calls",)

    def __init__(self, lease: Lease) -> None:
        self._adopt(lease)
        self._calls: list[tuple[_Call, Coroutine[Any, Any, None]]] = []

    def delete(
        self, *, reply: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Coroutine[Any, Any, None]:
        """See `Lease.delete`."""
        return self._watched("delete", super().delete(reply=reply, headers=headers))

    def extend(self, seconds: float | timedelta) -> Coroutine[Any, Any, None]:
        """See `Lease.extend`."""
        return self._watched("extend", super().extend(seconds))

    def release(self, *, at: At | None = None, delay: Delay | None = None) -> Coroutine[Any, Any, None]:
        """See `Lease.release`."""
        return self._watched("release", super().release(at=at, delay=delay))

    def reject(self, reason: str, *, error: BaseException | str | None = None) -> Coroutine[Any, Any, None]:
        """See `Lease.reject`."""
        return self._watched("reject", super().reject(reason, error=error))

    def progress(self, text: str) -> Coroutine[Any, Any, None]:
        """See `Lease.progress`."""
        return self._watched("progress", super().progress(text))

    def _watched(self, name: str, work: Coroutine[Any, Any, None]) -> Coroutine[Any, Any, None]:
        call = _Call(name, work)
        running = call.run()
        self._calls.append((call, running))
        return running

    async def check_calls(self) -> None:
        """Wait for the calls in progress; raises OUT_OF_STATE when a call was made and never awaited."""
        if not self._calls:
            return
        if not all(call.started for call, _ in self._calls):
            # A task that was made for a call begins at the next turn of the loop.
            await asyncio.sleep(0)
        calls, self._calls = self._calls, []
        forgotten = ""
        for call, running in calls:
            if call.started:
                await call.ended.wait()
            else:
                running.close()
                call.drop()
                forgotten = forgotten or call.name
        if forgotten:
            raise error_of(
                Code.OUT_OF_STATE,
                f"lease.{forgotten}(...) was called and not awaited, so it was not done: "
                f"write `await lease.{forgotten}(...)`",
                details=self.id,
            )
