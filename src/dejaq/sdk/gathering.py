"""Sends requests that wait at the same time in shared frames.

A frame costs both sides more than a thousand rows in it, so only a few frames are in transit at one time; requests that
arrive meanwhile go into the next frame. Otherwise the requests of one turn of the event loop leave at its end, so that
callers that an answer has woken share the next frame.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from dejaq.errors import DejaqError

Asked = TypeVar("Asked")
Answered = TypeVar("Answered")

# Two, so that the broker has work while an answer is in transit.
FRAMES_MAX = 2


@dataclass(slots=True, eq=False)
class _WaitingRequest(Generic[Asked, Answered]):
    """One request that waits for the next frame, and what is called with its answer."""

    asked: Asked
    done: Callable[[Answered | Exception], None]
    # What its caller waits for, when it waits.
    answer: asyncio.Future[Answered] | None = None


class Gathering(Generic[Asked, Answered]):
    """Sends requests; those that wait at the same time share a frame."""

    def __init__(
        self,
        send: Callable[[Sequence[Asked], Callable[[Sequence[Answered] | Exception], None]], None],
        *,
        weigh: Callable[[Asked], int],
        weight_max: int,
        shape: Callable[[Asked], Hashable] = lambda _: None,
        names: Callable[[Asked], Collection[str]] = lambda _: (),
    ) -> None:
        """`send` sends requests of one shape, up to a weight together, in one frame; it calls its last argument once
        with an answer for each, or with the error of all. Requests that have a name in common never share a frame. A
        frame that cannot be made, because of what one caller gave, is divided.
        """
        self._send = send
        self._weigh, self._weight_max = weigh, weight_max
        self._shape, self._names = shape, names
        self._waiting: deque[_WaitingRequest[Asked, Answered]] = deque()
        self._under_way = 0
        self._scheduled = False

    def ask(self, asked: Asked) -> asyncio.Future[Answered]:
        """The answer to one request, which is sent alone or together with others."""
        answer: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()

        def done(found: Answered | Exception) -> None:
            if answer.done():
                return
            if isinstance(found, Exception):
                answer.set_exception(copy_of(found) if isinstance(found, DejaqError) else found)
            else:
                answer.set_result(found)

        self._waiting.append(_WaitingRequest(asked, done, answer))
        self._flush_soon()
        return answer

    def add(self, asked: Asked, done: Callable[[Answered | Exception], None]) -> None:
        """Add a request; `done` is called with its answer or its error, once."""
        self._waiting.append(_WaitingRequest(asked, done))
        self._flush_soon()

    def _flush_soon(self) -> None:
        """Send at the end of this turn of the event loop: behind the callers that are woken now."""
        if not self._scheduled and self._under_way < FRAMES_MAX:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Send what waits, as far as frames may be sent."""
        self._scheduled = False
        while self._waiting and self._under_way < FRAMES_MAX:
            batch = self._next()
            if batch:
                self._send_all(batch)

    def _next(self) -> list[_WaitingRequest[Asked, Answered]]:
        """The waiting requests that fit into one frame, without those whose callers have stopped waiting."""
        batch: list[_WaitingRequest[Asked, Answered]] = []
        room, names, shape = self._weight_max, set[str](), None
        while self._waiting:
            waiting = self._waiting[0]
            if waiting.answer is None or not waiting.answer.done():
                asked = waiting.asked
                room -= self._weigh(asked)
                mine = self._names(asked)
                if not batch:
                    shape = self._shape(asked)
                elif room < 0 or self._shape(asked) != shape or not names.isdisjoint(mine):
                    break
                names.update(mine)
                batch.append(waiting)
            self._waiting.popleft()
        return batch

    def _send_all(self, batch: list[_WaitingRequest[Asked, Answered]]) -> None:
        def answered(answers: Sequence[Answered] | Exception) -> None:
            self._under_way -= 1
            if not isinstance(answers, Exception):
                for waiting, answer in zip(batch, answers, strict=True):
                    waiting.done(answer)
            elif len(batch) > 1 and not isinstance(answers, DejaqError):
                for waiting in batch:
                    self._send_all([waiting])
            else:
                for waiting in batch:
                    waiting.done(answers)
            if self._waiting:
                self._flush_soon()

        self._under_way += 1
        try:
            self._send([waiting.asked for waiting in batch], answered)
        except Exception as error:  # noqa: BLE001  its caller gets it
            answered(error)


def copy_of(error: DejaqError) -> DejaqError:
    """The same error for another caller: each raises one of its own."""
    copied = copy.copy(error)
    copied.answered, copied.unsure = error.answered, error.unsure
    return copied
