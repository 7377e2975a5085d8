"""The creates that wait for the server: batches that wait at the same time share a statement and a commit.

Each statement checks which counters of its producer sessions were used before, so the batches of one session are
committed one after the other. While the statements that are allowed at one time run, later batches wait, and the next
statement takes as many of them as fit. A batch that waits alone starts at once; no batch waits for others to come.

A large group follows another group of its session: its rows are written at the same time, on another connection, and
its transaction waits until the other group is done, before it continues the session and commits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from dejaq.domain.batch import Outcomes
from dejaq.errors import DejaqError
from dejaq.storage.postgres.connection.failures import Moving
from dejaq.storage.postgres.operations.joint_creating import CreateGroup, NotPlain, PlannedCreate
from dejaq.storage.used_sequences import UsedSequences

GROUP_ROWS_MAX = 4_000
GROUP_BYTES_MAX = 4 * 1024 * 1024
# So many groups of one session run at the same time.
RUNNING_MAX = 2
# A group of so many rows follows another one. It does not wait longer for it than this time, because the other group
# may wait for an id of this one.
FOLLOWING_ROWS_MIN, FOLLOWING_SECONDS = 1_000, 1.0

Session = tuple[int, bytes]
# The used sequences of a session as this process wrote them last; None when it does not know them.
Known = Callable[[Session], UsedSequences | None]
UntilReady = Callable[[], Awaitable[None]]
CreateGroups = Callable[[CreateGroup, UntilReady | None], Awaitable[None]]
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
        # The statements of each session in progress, in order.
        self._running: dict[Session, list[asyncio.Task[None]]] = {}
        # What the sessions have used when these statements are done.
        self._ahead: dict[Session, UsedSequences] = {}
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
            group = self._group_of(chosen, self._ahead)
            sessions = {one.session for one in chosen}
            before = {task for session in sessions for task in self._running.get(session, ())}
            task = asyncio.get_running_loop().create_task(self._run(chosen, group, before))
            self._tasks.add(task)
            for session in sessions:
                self._running.setdefault(session, []).append(task)
                if group is not None:
                    self._ahead[session] = group.sessions[session][1]
            task.add_done_callback(partial(self._ended, sessions))

    def _ended(self, sessions: set[Session], task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        for session in sessions:
            self._running[session].remove(task)
            if not self._running[session]:
                del self._running[session]
                self._ahead.pop(session, None)
        self._start()

    def _next(self) -> list[_Waiting]:
        """The batches for the next statement: those that fit together, or one that must be created row by row."""
        # Nothing follows a batch that is created row by row, because it may be refused.
        closed = {one for one, tasks in self._running.items() if len(tasks) >= RUNNING_MAX or one not in self._ahead}
        chosen = self._choose(closed)
        follows = any(one.session in self._running for one in chosen)
        if follows and sum(len(one.plan.batch) for one in chosen) < FOLLOWING_ROWS_MIN:
            chosen = self._choose(set(self._running))
        return chosen

    def _choose(self, passed: set[Session]) -> list[_Waiting]:
        """The next batches, except those of some sessions."""
        chosen: list[_Waiting] = []
        used: dict[Session, UsedSequences] = {}
        rows = size = 0
        for one in self._waiting:
            if one.session in passed:
                continue
            if chosen and not one.plan.fits(chosen[0].plan):
                passed.add(one.session)
                continue
            if chosen and (rows + len(one.plan.batch) > GROUP_ROWS_MAX or size + one.size > GROUP_BYTES_MAX):
                break
            if not self._add(one.plan, used, self._ahead):
                if one.session in self._running:
                    passed.add(one.session)
                    continue
                return chosen or [one]
            chosen.append(one)
            rows, size = rows + len(one.plan.batch), size + one.size
        return chosen

    def _add(
        self, plan: PlannedCreate, used: dict[Session, UsedSequences], ahead: Mapping[Session, UsedSequences]
    ) -> bool:
        """Count a batch as created in the sequences of its session; False when it must be created row by row."""
        sequences = used.get(plan.session) or ahead.get(plan.session) or self._known(plan.session) or UsedSequences()
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

    def _group_of(self, chosen: Sequence[_Waiting], ahead: Mapping[Session, UsedSequences]) -> CreateGroup | None:
        """The statement for some batches; None when one of them must be created row by row."""
        used: dict[Session, UsedSequences] = {}
        if not all(self._add(one.plan, used, ahead) for one in chosen):
            return None
        sessions = {
            session: (ahead.get(session) or self._known(session) or UsedSequences(), after)
            for session, after in used.items()
        }
        return CreateGroup([one.plan for one in chosen], sessions)

    async def _run(
        self, chosen: list[_Waiting], group: CreateGroup | None, before: Collection[asyncio.Task[None]]
    ) -> None:
        async def until_ready() -> None:
            _, left = await asyncio.wait(before, timeout=FOLLOWING_SECONDS)
            if left:
                raise NotPlain

        try:
            if group is not None and await self._is_created(group, until_ready if before else None):
                _answer_all(chosen)
                return
            if before:
                # Each of them ends within the time limit of the server.
                await asyncio.wait(before)
            await self._create(chosen, tried=not before)
        except Exception as error:  # noqa: BLE001  each caller gets it
            for one in chosen:
                if not one.outcome.done():
                    one.outcome.set_exception(error)

    async def _is_created(self, group: CreateGroup, until_ready: UntilReady | None = None) -> bool:
        """Create a group; False when one of its batches cannot be created in one statement."""
        try:
            await self._create_all(group, until_ready)
        except (NotPlain, Moving):
            return False
        return True

    async def _create(self, chosen: Sequence[_Waiting], *, tried: bool = False) -> None:
        """Create batches in one statement; if one of them cannot be, in smaller groups, and that one alone."""
        group = None if tried else self._group_of(chosen, {})
        if group is not None and await self._is_created(group):
            _answer_all(chosen)
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


def _answer_all(chosen: Sequence[_Waiting]) -> None:
    for one in chosen:
        _answer(one, Outcomes(len(one.plan.batch)))


def _answer(one: _Waiting, outcomes: Outcomes) -> None:
    if not one.outcome.done():
        one.outcome.set_result(outcomes)
