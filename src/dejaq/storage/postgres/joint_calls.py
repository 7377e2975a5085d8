"""Calls that wait for the server: those that wait at the same time and fit together share a statement and a commit.

While the statements that are allowed at one time run, later calls wait, and the next statement takes as many of them as
fit. While few callers make calls, a call starts at once if it can. While many do, calls also wait for each other, for a
moment after the last statement began: each statement costs the server and the broker a commit and some round trips.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

from dejaq.errors import DejaqError

CALLS_MAX = 64
# So many statements of calls that would fit together run at the same time.
STATEMENTS_MAX = 2
# Many callers: at least so many in a period of this length or in the one before.
CROWD_CALLERS, CROWD_SECONDS = 32, 1.0


class NotTogether(DejaqError):
    """These calls cannot share a statement: each must run by itself. Nothing was done."""


class JointCall(Protocol):
    """What the queue must know of a call."""

    @property
    def kind(self) -> Hashable:
        """Calls of one kind fit together; None for a call that runs by itself."""

    @property
    def caller(self) -> Hashable:
        """For whom it is made."""

    @property
    def needs(self) -> frozenset[Hashable]:
        """What it needs for itself: calls that need the same run one after the other, in the order of their arrival."""


Call = TypeVar("Call", bound=JointCall)
Answer = TypeVar("Answer")


@dataclass(eq=False, slots=True)
class _QueuedCall(Generic[Call, Answer]):
    call: Call
    kind: Hashable
    needs: frozenset[Hashable]
    answer: asyncio.Future[Answer]


class Callers:
    """Whether many callers have made calls lately."""

    def __init__(self) -> None:
        self._last: frozenset[Hashable] = frozenset()
        self._now: set[Hashable] = set()
        self._since = -math.inf

    def note(self, caller: Hashable, at: float) -> None:
        """A call was made; `at` is in seconds."""
        passed = at - self._since
        if passed >= CROWD_SECONDS:
            self._last = frozenset(self._now) if passed < 2 * CROWD_SECONDS else frozenset()
            self._now, self._since = set(), at
        if len(self._now) < CROWD_CALLERS:
            self._now.add(caller)

    @property
    def many(self) -> bool:
        """Whether there were many at the last call."""
        return max(len(self._now), len(self._last)) >= CROWD_CALLERS


class JointCalls(Generic[Call, Answer]):
    """Runs calls in groups: `together` does several, or raises `NotTogether`; `alone` does one."""

    def __init__(
        self,
        together: Callable[[Sequence[Call]], Awaitable[Sequence[Answer]]],
        alone: Callable[[Call], Awaitable[Answer]],
        *,
        gather_seconds: float = 0.0,
    ) -> None:
        """While many callers make calls, statements begin so many seconds apart, or when a statement is full."""
        self._together = together
        self._alone = alone
        self._gather_seconds = gather_seconds
        self._callers = Callers()
        # When a statement began last; and whether calls have waited long enough for others.
        self._began_at = -math.inf
        self._gathered = False
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: list[_QueuedCall[Call, Answer]] = []
        # What the calls that wait need, and what those that run need.
        self._wanted: Counter[Hashable] = Counter()
        self._needed: set[Hashable] = set()
        self._running: Counter[Hashable] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, call: Call) -> Answer:
        """Do a call in its turn. If the caller is cancelled, a call that has begun is done, and another is dropped."""
        loop = asyncio.get_running_loop()
        one = _QueuedCall[Call, Answer](call, call.kind, call.needs, loop.create_future())
        self._callers.note(call.caller, loop.time())
        # A new call allows no earlier one to begin.
        if not self._callers.many and self._is_free(one) and self._wanted.keys().isdisjoint(one.needs):
            self._begin([one])
        else:
            self._waiting.append(one)
            self._wanted.update(one.needs)
            if self._callers.many and self._is_free(one):
                self._begin_some()
        return await one.answer

    def _begin_some(self) -> None:
        """Begin what can begin; while many callers make calls, not before others had time to come."""
        now = asyncio.get_running_loop().time()
        if self._callers.many and not self._gathered and len(self._waiting) < CALLS_MAX:
            if self._timer is None and self._waiting:
                at = max(self._began_at + self._gather_seconds, now + self._gather_seconds / 4)
                self._timer = asyncio.get_running_loop().call_at(at, self._end_gathering)
            return
        self._take_out([one for one in self._waiting if one.answer.done()])
        while chosen := self._next():
            self._gathered, self._began_at = False, now
            self._take_out(chosen)
            self._begin(chosen)

    def _end_gathering(self) -> None:
        # If nothing can begin now, the end of what runs begins it.
        self._timer, self._gathered = None, True
        self._begin_some()

    def _is_free(self, one: _QueuedCall[Call, Answer]) -> bool:
        """Whether nothing that runs is in its way."""
        return self._needed.isdisjoint(one.needs) and (one.kind is None or self._running[one.kind] < STATEMENTS_MAX)

    def _begin(self, chosen: list[_QueuedCall[Call, Answer]]) -> None:
        kind, needs = chosen[0].kind, frozenset[Hashable]().union(*(one.needs for one in chosen))
        self._needed |= needs
        self._running[kind] += 1
        task = asyncio.get_running_loop().create_task(self._run(chosen))
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, kind, needs))

    def _ended(self, kind: Hashable, needs: frozenset[Hashable], task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._needed -= needs
        self._running[kind] -= 1
        if not self._running[kind]:
            del self._running[kind]
        self._begin_some()

    def _take_out(self, chosen: list[_QueuedCall[Call, Answer]]) -> None:
        if chosen:
            taken = set(chosen)
            self._waiting = [one for one in self._waiting if one not in taken]
            self._wanted = Counter(need for one in self._waiting for need in one.needs)

    def _next(self) -> list[_QueuedCall[Call, Answer]]:
        """The next calls that can begin: one by itself, or some of one kind."""
        chosen: list[_QueuedCall[Call, Answer]] = []
        passed: set[Hashable] = set()
        for one in self._waiting:
            fits = not chosen or one.kind == chosen[0].kind
            # What a call that waits needs is not given to a later one.
            if fits and self._is_free(one) and passed.isdisjoint(one.needs):
                chosen.append(one)
                if one.kind is None or len(chosen) == CALLS_MAX:
                    break
            passed |= one.needs
        return chosen

    async def _run(self, chosen: Sequence[_QueuedCall[Call, Answer]]) -> None:
        if len(chosen) > 1:
            try:
                answers = await self._together([one.call for one in chosen])
            except NotTogether:
                pass
            except Exception as error:  # noqa: BLE001  each caller gets it
                for one in chosen:
                    _fail(one, error)
                return
            else:
                for one, answer in zip(chosen, answers, strict=True):
                    if not one.answer.done():
                        one.answer.set_result(answer)
                return
        for one in chosen:
            try:
                answer = await self._alone(one.call)
            except Exception as error:  # noqa: BLE001  the caller gets it
                _fail(one, error)
            else:
                if not one.answer.done():
                    one.answer.set_result(answer)


def _fail(one: _QueuedCall[Call, Answer], error: Exception) -> None:
    if not one.answer.done():
        one.answer.set_exception(error)
