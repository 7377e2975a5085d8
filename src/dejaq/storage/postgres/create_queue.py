"""The creates that wait for the server: batches that wait at the same time share a statement and a commit.

The batches of one producer session are created one after the other, because each statement checks which counters of the
session were used before. While the statements that are allowed at one time run, later batches wait, and the next
statement takes as many of them as fit. A batch that waits alone starts at once; no batch waits for others to come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from dejaq.domain.batch import Outcomes
from dejaq.errors import DejaqError
from dejaq.storage.postgres.connection.failures import Moving
from dejaq.storage.postgres.operations.joint_creating import CreateGroup, NotPlain, PlannedCreate
from dejaq.storage.used_sequences import UsedSequences

GROUP_ROWS_MAX = 4_000
GROUP_BYTES_MAX = 4 * 1024 * 1024

Session = tuple[int, bytes]
# The used sequences of a session as this process wrote them last; None when it does not know them.
Known = Callable[[Session], UsedSequences | None]
CreateGroups = Callable[[CreateGroup], Awaitable[None]]
CreateOne = Callable[[PlannedCreate], Awaitable[Outcomes]]


@dataclass(eq=False, slots=True)
class _Waiting:
    plan: PlannedCreate
    session: Session
    outcome: asyncio.Future[Outcomes]
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = sum(map(len, self.plan.batch.bodies))


class CreateQueue:
    """Creates batches in groups; `known` gives the sessions, `create_all` and `create_one` do the work."""

    def __init__(self, known: Known, create_all: CreateGroups, create_one: CreateOne, *, statements_max: int) -> None:
        self._known = known
        self._create_all = create_all
        self._create_one = create_one
        self._statements_max = statements_max
        self._waiting: list[_Waiting] = []
        self._busy: set[Session] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def create(self, plan: PlannedCreate) -> Outcomes:
        """Create a batch in its turn; the batch is created even if the caller is cancelled meanwhile."""
        one = _Waiting(plan, plan.session, asyncio.get_running_loop().create_future())
        self._waiting.append(one)
        self._start()
        return await one.outcome

    def _start(self) -> None:
        while self._waiting and len(self._tasks) < self._statements_max:
            chosen = self._next()
            if not chosen:
                return
            taken = set(chosen)
            self._waiting = [one for one in self._waiting if one not in taken]
            sessions = {one.session for one in chosen}
            self._busy |= sessions
            task = asyncio.get_running_loop().create_task(self._run(chosen))
            self._tasks.add(task)
            task.add_done_callback(partial(self._ended, sessions))

    def _ended(self, sessions: set[Session], task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._busy -= sessions
        self._start()

    def _next(self) -> list[_Waiting]:
        """The batches for the next statement: those that fit together, or one that must be created row by row."""
        chosen: list[_Waiting] = []
        used: dict[Session, UsedSequences] = {}
        passed = set(self._busy)
        rows = size = 0
        for one in self._waiting:
            if one.session in passed:
                continue
            if chosen and not one.plan.fits(chosen[0].plan):
                passed.add(one.session)
                continue
            if chosen and (rows + len(one.plan.batch) > GROUP_ROWS_MAX or size + one.size > GROUP_BYTES_MAX):
                break
            if not self._add(one.plan, used):
                return chosen or [one]
            chosen.append(one)
            rows, size = rows + len(one.plan.batch), size + one.size
        return chosen

    def _add(self, plan: PlannedCreate, used: dict[Session, UsedSequences]) -> bool:
        """Count a batch as created in the sequences of its session; False when it must be created row by row."""
        sequences = used.get(plan.session) or self._known(plan.session) or UsedSequences()
        after = sequences.copy()
        try:
            if not plan.is_plain(sequences):
                return False
            plan.use(after)
        except DejaqError:
            # Created alone, it is refused with this error.
            return False
        used[plan.session] = after
        return True

    def _group_of(self, chosen: Sequence[_Waiting]) -> CreateGroup | None:
        """The statement for some batches; None when one of them must be created row by row."""
        used: dict[Session, UsedSequences] = {}
        if not all(self._add(one.plan, used) for one in chosen):
            return None
        sessions = {session: (self._known(session) or UsedSequences(), after) for session, after in used.items()}
        return CreateGroup([one.plan for one in chosen], sessions)

    async def _run(self, chosen: list[_Waiting]) -> None:
        try:
            await self._create(chosen)
        except Exception as error:  # noqa: BLE001  each caller gets it
            for one in chosen:
                if not one.outcome.done():
                    one.outcome.set_exception(error)

    async def _create(self, chosen: Sequence[_Waiting]) -> None:
        """Create batches in one statement; if one of them cannot be, in smaller groups, and that one alone."""
        group = self._group_of(chosen)
        if group is not None:
            try:
                await self._create_all(group)
            except (NotPlain, Moving):
                pass
            else:
                for one in chosen:
                    _answer(one, Outcomes(len(one.plan.batch)))
                return
        if len(chosen) > 1:
            half = len(chosen) // 2
            await self._create(chosen[:half])
            await self._create(chosen[half:])
            return
        (one,) = chosen
        try:
            _answer(one, await self._create_one(one.plan))
        except DejaqError as error:
            if not one.outcome.done():
                one.outcome.set_exception(error)


def _answer(one: _Waiting, outcomes: Outcomes) -> None:
    if not one.outcome.done():
        one.outcome.set_result(outcomes)
