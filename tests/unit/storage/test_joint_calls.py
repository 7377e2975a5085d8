"""Calls that share statements: which of them go together, and in which order."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import pytest

from dejaq.storage.postgres.joint_calls import (
    CALLS_MAX,
    CROWD_CALLERS,
    CROWD_SECONDS,
    STATEMENTS_MAX,
    Callers,
    JointCalls,
    NotTogether,
)
from dejaq.testing.waiting import eventually


@dataclass(frozen=True)
class Call:
    name: str
    kind: Hashable = "kind"
    needs: frozenset[Hashable] = frozenset()
    caller: Hashable = "one"


class Server:
    """Records what runs; a statement ends when `finish` says so."""

    def __init__(self, *, gather_seconds: float = 0.0) -> None:
        self.running: list[tuple[list[str], asyncio.Future[None]]] = []
        self.done: list[list[str]] = []
        self.refuses = False
        self.calls = JointCalls[Call, str](self._together, self._alone, gather_seconds=gather_seconds)

    async def _together(self, calls: Sequence[Call]) -> list[str]:
        await self._wait([call.name for call in calls])
        if self.refuses:
            raise NotTogether
        return [f"{call.name} of {len(calls)}" for call in calls]

    async def _alone(self, call: Call) -> str:
        await self._wait([call.name])
        if call.name == "bad":
            raise ValueError(call.name)
        return call.name

    async def _wait(self, names: list[str]) -> None:
        ended = asyncio.get_running_loop().create_future()
        self.running.append((names, ended))
        await ended
        self.done.append(names)

    def start(self, call: Call) -> asyncio.Task[str]:
        return asyncio.ensure_future(self.calls.run(call))

    async def names(self) -> list[list[str]]:
        """What runs now."""
        for _ in range(5):
            await asyncio.sleep(0)
        return [names for names, _ in self.running]

    async def finish(self) -> list[list[str]]:
        """End the oldest statement."""
        self.running.pop(0)[1].set_result(None)
        return await self.names()


async def test_calls_that_wait_go_together() -> None:
    server = Server()
    tasks = [server.start(Call(str(number))) for number in range(STATEMENTS_MAX + 3)]
    assert await server.names() == [["0"], ["1"]]
    assert await server.finish() == [["1"], ["2", "3", "4"]]
    assert await server.finish() == [["2", "3", "4"]]
    assert await server.finish() == []
    assert await asyncio.gather(*tasks) == ["0", "1", "2 of 3", "3 of 3", "4 of 3"]


async def test_a_group_has_a_bound_and_one_kind() -> None:
    server = Server()
    first = [server.start(Call(f"held {number}")) for number in range(STATEMENTS_MAX)]
    await server.names()
    more = [server.start(Call(str(number))) for number in range(CALLS_MAX + 1)]
    other = [server.start(Call(name, kind="other")) for name in "ab"]
    alone = server.start(Call("alone", kind=None))
    # Nothing of their kinds runs.
    assert (await server.names())[STATEMENTS_MAX:] == [["a"], ["b"], ["alone"]]
    assert len((await server.finish())[-1]) == CALLS_MAX
    while await server.finish():
        pass
    assert len(await asyncio.gather(*first, *more, *other, alone)) == STATEMENTS_MAX + CALLS_MAX + 4


async def test_calls_that_need_the_same_run_in_the_order_of_their_arrival() -> None:
    server = Server()
    wants = [("a", "x"), ("b", "xy"), ("c", "y"), ("d", "z")]
    tasks = [server.start(Call(name, needs=frozenset(needs))) for name, needs in wants]
    # c needs what b waits for.
    assert await server.names() == [["a"], ["d"]]
    assert await server.finish() == [["d"], ["b"]]
    assert await server.finish() == [["b"]]
    assert await server.finish() == [["c"]]
    await server.finish()
    assert await asyncio.gather(*tasks) == list("abcd")


async def test_calls_that_cannot_go_together_run_one_by_one_and_fail_alone() -> None:
    server = Server()
    server.refuses = True
    tasks = [server.start(Call(name)) for name in ("1", "2", "3", "bad", "4")]
    while await server.names():
        await server.finish()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [answer for answer in answers if isinstance(answer, str)] == ["1", "2", "3", "4"]
    assert isinstance(answers[3], ValueError)


async def test_a_caller_that_stops_waiting_holds_nobody_back() -> None:
    server = Server()
    tasks = [server.start(Call(name, needs=frozenset("x"))) for name in "abc"]
    assert await server.names() == [["a"]]
    tasks[0].cancel()
    tasks[1].cancel()
    assert await server.names() == [["a"]]
    assert await server.finish() == [["c"]]
    await server.finish()
    assert await tasks[2] == "c"
    assert server.done == [["a"], ["c"]]
    with pytest.raises(asyncio.CancelledError):
        await tasks[0]


async def test_calls_of_many_callers_wait_for_each_other_until_a_statement_is_full() -> None:
    server = Server(gather_seconds=1e6)
    tasks = [server.start(Call(str(number), caller=number)) for number in range(CROWD_CALLERS - 1)]
    assert len(await server.names()) == STATEMENTS_MAX, "few callers: a call begins if it can"
    while await server.finish():
        pass
    begun = len(server.done)
    more = [server.start(Call(f"crowd {number}", caller=f"crowd {number}")) for number in range(CALLS_MAX - 1)]
    assert await server.names() == [], "others may come"
    more.append(server.start(Call("last", caller="last")))
    assert [len(names) for names in await server.names()] == [CALLS_MAX]
    await server.finish()
    assert len(server.done) == begun + 1
    await asyncio.gather(*tasks, *more)


async def test_calls_of_many_callers_do_not_wait_for_long() -> None:
    server = Server(gather_seconds=0.004)
    tasks = [server.start(Call(str(number), caller=number)) for number in range(CROWD_CALLERS)]
    while await server.names():
        await server.finish()
    await eventually(lambda: bool(server.running), within=5.0, what="the last call begins")
    await server.finish()
    task = server.start(Call("alone", caller="alone"))
    assert await server.names() == []
    await eventually(lambda: bool(server.running), within=5.0, what="a call that stays alone begins")
    await server.finish()
    assert await asyncio.gather(*tasks, task)


def test_a_crowd_is_many_callers_in_two_periods_and_not_many_calls() -> None:
    callers = Callers()
    for call in range(10 * CROWD_CALLERS):
        callers.note(call % (CROWD_CALLERS - 1), call * 1e-3)
    assert not callers.many
    for call in range(CROWD_CALLERS):
        callers.note(call, 100.0)
    assert callers.many
    callers.note("one", 100.0 + CROWD_SECONDS)
    assert callers.many, "the period before counts"
    callers.note("one", 100.0 + 2 * CROWD_SECONDS)
    assert not callers.many
    for call in range(CROWD_CALLERS):
        callers.note(call, 200.0)
    callers.note("one", 200.0 + 2 * CROWD_SECONDS)
    assert not callers.many, "an old period does not count"
