"""Sends requests that wait at the same time in shared frames.

A frame costs both sides more than a thousand rows in it, so only a few frames are in transit at one time; requests that
arrive meanwhile go into the next frame. A single request never waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Asked = TypeVar("Asked")
Answered = TypeVar("Answered")

# Two, so that the broker has work while an answer is in transit.
FRAMES_MAX = 2


@dataclass(frozen=True)
class _WaitingRequest(Generic[Asked, Answered]):
    """One request that waits for the next frame."""

    asked: Asked
    answer: asyncio.Future[Answered]


class Gathering(Generic[Asked, Answered]):
    """Sends requests; those that wait at the same time share a frame."""

    def __init__(
        self,
        send: Callable[[Sequence[Asked]], Awaitable[Sequence[Answered]]],
        *,
        weigh: Callable[[Asked], int],
        weight_max: int,
        shape: Callable[[Asked], Hashable] = lambda _: None,
    ) -> None:
        """`send` sends requests of one shape, up to a weight together, in one frame, and returns an answer for each."""
        self._send = send
        self._weigh, self._weight_max = weigh, weight_max
        self._shape = shape
        self._waiting: deque[_WaitingRequest[Asked, Answered]] = deque()
        self._under_way = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def ask(self, asked: Asked) -> Answered:
        """The answer to one request, which is sent alone or together with others."""
        if self._under_way < FRAMES_MAX:
            return (await self._request([asked]))[0]
        answer: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        self._waiting.append(_WaitingRequest(asked, answer))
        return await answer

    async def _request(self, asked: Sequence[Asked]) -> Sequence[Answered]:
        self._under_way += 1
        try:
            return await self._send(asked)
        finally:
            self._under_way -= 1
            self._next()

    def _next(self) -> None:
        """Send the waiting requests in one frame, without those whose callers have stopped waiting."""
        batch: list[_WaitingRequest[Asked, Answered]] = []
        room = self._weight_max
        while self._waiting:
            waiting = self._waiting[0]
            if not waiting.answer.done():
                room -= self._weigh(waiting.asked)
                if batch and (room < 0 or self._shape(waiting.asked) != self._shape(batch[0].asked)):
                    break
                batch.append(waiting)
            self._waiting.popleft()
        if batch:
            task = asyncio.ensure_future(self._send_all(batch))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send_all(self, batch: list[_WaitingRequest[Asked, Answered]]) -> None:
        try:
            answers = await self._request([waiting.asked for waiting in batch])
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait for it must learn of it
            for waiting in batch:
                if not waiting.answer.done():
                    waiting.answer.set_exception(error)
            return
        for waiting, answer in zip(batch, answers, strict=True):
            if not waiting.answer.done():
                waiting.answer.set_result(answer)
