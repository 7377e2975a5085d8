"""Small creates wait for each other: what arrives during one sync is stored together, and shares the next sync.

A change that is written during a sync waits for the end of that sync and then for one of its own. A create that waits
is therefore not slower if it is applied only when the first of the two ends. Nothing overtakes it where that could be
seen: before anything else reads or changes the topics, what waits is applied.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dejaq.domain.batch import Outcomes
from dejaq.domain.changes import Create
from dejaq.domain.context import CallContext
from dejaq.domain.topic import Durability, Topic
from dejaq.errors import Refused
from dejaq.storage.rocksdb.engine.committer import Committer

# A batch with more rows has runs of its own.
SMALL_ROWS = 64
# So many rows or bytes that wait are applied at once.
ROWS_MAX = 1_024
BYTES_MAX = 512 * 1024

Answers = Sequence[Outcomes | Refused]
Answer = asyncio.Future[Outcomes | Refused]


@dataclass(slots=True)
class PendingGroup:
    """Creates in one topic, of one caller as the journal knows it, that are applied together."""

    topic: Topic
    context: CallContext
    creates: list[Create] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    # Each id occurs once.
    ids: set[str] = field(default_factory=set)
    now: int = 0


def is_small(create: Create) -> bool:
    """Whether a create waits for others."""
    return len(create.batch) <= SMALL_ROWS


class PendingCreates:
    """The creates that wait. `apply` applies a group; it returns the answers, and what is to be durable before them."""

    def __init__(
        self, committer: Committer, apply: Callable[[PendingGroup], tuple[Answers, asyncio.Future[None] | None]]
    ) -> None:
        self._committer = committer
        self._apply = apply
        self._loop = asyncio.get_running_loop()
        self._groups: dict[tuple[int, str], PendingGroup] = {}
        self._rows = self._bytes = 0

    def add(self, create: Create, now: int, context: CallContext) -> Answer:
        """Have a create applied soon; returns its answer."""
        topic, batch = create.topic, create.batch
        place = topic.number, context.principal.recorded
        group = self._groups.get(place)
        ids = batch.all_ids()
        if group is not None and not group.ids.isdisjoint(ids):
            # The second create with an id is decided when the first one is done.
            self.flush()
            group = None
        if not self._groups:
            self._loop.call_soon(self._turn_over)
        if group is None:
            group = self._groups[place] = PendingGroup(topic, context)
        answer: Answer = self._loop.create_future()
        group.creates.append(create)
        group.answers.append(answer)
        group.ids.update(ids)
        group.now = max(group.now, now)
        self._rows += len(batch)
        self._bytes += sum(map(len, batch.bodies))
        if self._rows >= ROWS_MAX or self._bytes >= BYTES_MAX:
            self.flush()
        return answer

    def _turn_over(self) -> None:
        """Apply what waits, or wait for the end of the sync in progress if nothing else waits for the one behind it."""
        relaxed = any(group.topic.settings.durability is not Durability.FSYNC for group in self._groups.values())
        syncing = self._committer.syncing
        if syncing is None or relaxed:
            self.flush()
        else:
            syncing.add_done_callback(lambda _: self.flush())

    def hurry(self) -> None:
        """Something was written: what waits now shares its sync."""
        if self._groups:
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Apply what waits."""
        if not self._groups:
            return
        groups, self._groups = self._groups, {}
        self._rows = self._bytes = 0
        for group in groups.values():
            try:
                answers, durable = self._apply(group)
            except Exception as cause:  # noqa: BLE001  each caller raises it
                _fail(group.answers, cause)
                continue
            if durable is None:
                _give(group.answers, answers)
            else:
                durable.add_done_callback(_Giving(group.answers, answers))


class _Giving:
    """Gives answers when a future is done."""

    def __init__(self, waiting: Sequence[Answer], answers: Answers) -> None:
        self._waiting, self._answers = waiting, answers

    def __call__(self, durable: asyncio.Future[None]) -> None:
        if durable.cancelled():
            _fail(self._waiting, asyncio.CancelledError())
        elif (cause := durable.exception()) is not None:
            _fail(self._waiting, cause)
        else:
            _give(self._waiting, self._answers)


def _give(waiting: Sequence[Answer], answers: Answers) -> None:
    for one, answer in zip(waiting, answers, strict=True):
        if not one.done():
            one.set_result(answer)


def _fail(waiting: Sequence[Answer], cause: BaseException) -> None:
    for one in waiting:
        if not one.done():
            one.set_exception(cause)
            # Its caller may have been cancelled.
            one.exception()
