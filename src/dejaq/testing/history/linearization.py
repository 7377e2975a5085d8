"""Searches a history of a few events for one order of effects that explains every answer about a message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, StrEnum, auto

from dejaq.testing.history.ledger import CallOutcome

NEVER = 2**62


class Op(StrEnum):
    """The kind of a call."""

    CREATE = "create"
    MOVE = "move"
    CANCEL = "cancel"
    DELIVER = "deliver"
    EXTEND = "extend"
    RELEASE = "release"
    DELETE = "delete"


@dataclass(slots=True)
class Event:
    """A call and its answer. `ts_us` is the requested time, `expires_us` the end of the lease that it created or moved.

    The end may be up to `slack_us` later than requested. A `repeatable` delete also succeeds when the message is gone.
    """

    op: Op
    id: str
    began_us: int
    ts_us: int = 0
    lease: int = 0
    expires_us: int = 0
    consumer: str = ""
    slack_us: int = 0
    repeatable: bool = False
    ended_us: int = NEVER
    outcome: CallOutcome = CallOutcome.UNKNOWN

    def end(self, at_us: int, outcome: CallOutcome) -> None:
        """Record the answer."""
        self.ended_us, self.outcome = at_us, outcome


class _Life(Enum):
    UNBORN = auto()
    THERE = auto()
    GONE = auto()


@dataclass(frozen=True, slots=True)
class _State:
    """A message at `clock`; its lease, if it has one, ends between `ends_first` and `ends_last`."""

    life: _Life = _Life.UNBORN
    due: int = 0
    lease: int = 0
    last_lease: int = 0
    ends_first: int = 0
    ends_last: int = 0
    clock: int = 0


def linearizable(history: Sequence[Event], *, left: bool) -> bool:
    """Whether some order of effects, each within its call, explains every answer and what is `left` at the end."""
    everything = frozenset(range(len(history)))
    seen: set[tuple[frozenset[int], _State]] = set()
    waiting = [(everything, _State())]
    while waiting:
        rest, state = waiting.pop()
        if (rest, state) in seen:
            continue
        seen.add((rest, state))
        if all(history[index].outcome is CallOutcome.UNKNOWN for index in rest) and _may_end(state, left=left):
            return True
        first_end = min((history[index].ended_us for index in rest), default=NEVER)
        for index in rest:
            if history[index].began_us <= first_end:
                waiting += [(rest - {index}, after) for after in _effects(state, history[index])]
    return False


def _may_end(state: _State, *, left: bool) -> bool:
    return state.life is _Life.THERE if left else state.life is not _Life.THERE


def _effects(state: _State, event: Event) -> Iterator[_State]:
    """The states after the event, if it takes effect next."""
    now = max(state.clock, event.began_us)
    if now > event.ended_us:
        return
    state = replace(state, clock=now)
    if event.outcome is CallOutcome.REFUSED:
        yield from _refused(state, event)
    elif event.op is Op.CREATE:
        yield replace(state, life=_Life.THERE, due=event.ts_us) if state.life is _Life.UNBORN else state
    elif event.op is Op.DELIVER:
        yield from _delivered(state, event)
    elif event.op in (Op.MOVE, Op.CANCEL):
        yield from _owned(state, event)
    elif state.life is _Life.GONE and event.op is Op.DELETE and event.repeatable:
        yield state
    elif state.life is _Life.THERE and state.lease == event.lease and now < state.ends_last:
        yield _settled(state, event)


def _refused(state: _State, event: Event) -> Iterator[_State]:
    """A settlement is refused only when its lease is not live; for other refusals the history does
    not show the reason.
    """
    settling = event.op in (Op.EXTEND, Op.RELEASE, Op.DELETE)
    if not settling or state.life is not _Life.THERE or state.lease != event.lease:
        yield state
    elif state.ends_first <= event.ended_us:
        yield replace(state, clock=max(state.clock, state.ends_first))


def _delivered(state: _State, event: Event) -> Iterator[_State]:
    if state.life is not _Life.THERE or event.ended_us < state.due:
        return
    if state.lease == event.lease:
        yield state
    free = _free_at(state)
    if free <= event.ended_us and event.lease > state.last_lease:
        yield replace(
            state,
            lease=event.lease,
            last_lease=event.lease,
            ends_first=event.expires_us,
            ends_last=event.expires_us + event.slack_us,
            clock=max(state.clock, free),
        )


def _owned(state: _State, event: Event) -> Iterator[_State]:
    free = _free_at(state)
    if state.life is not _Life.THERE or free > event.ended_us:
        return
    state = replace(state, clock=max(state.clock, free), lease=0)
    yield replace(state, life=_Life.GONE) if event.op is Op.CANCEL else replace(state, due=event.ts_us)


def _settled(state: _State, event: Event) -> _State:
    if event.op is Op.DELETE:
        return replace(state, life=_Life.GONE, lease=0)
    if event.op is Op.RELEASE:
        return replace(state, lease=0, due=event.ts_us)
    # An extension never shortens a lease.
    return replace(
        state,
        ends_first=max(state.ends_first, event.expires_us),
        ends_last=max(state.ends_last, event.expires_us + event.slack_us),
    )


def _free_at(state: _State) -> int:
    """The first time at which nobody holds the message."""
    return state.ends_first if state.lease else 0
