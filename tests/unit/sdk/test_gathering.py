"""Requests of one turn of the event loop share a frame, and every caller gets its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from dejaq.errors import DejaqError, Unavailable
from dejaq.sdk.gathering import FRAMES_MAX, Gathering

Done = Callable[[Sequence[str] | DejaqError], None]


class SentFrames:
    """What was sent, answered when the test says so."""

    def __init__(self) -> None:
        self.frames: list[Sequence[str]] = []
        self._waiting: list[Done] = []

    def send(self, asked: Sequence[str], done: Done) -> None:
        self.frames.append(list(asked))
        self._waiting.append(done)

    def answer(self, error: DejaqError | None = None) -> None:
        frame = self.frames[-len(self._waiting)]
        self._waiting.pop(0)(error or [one.upper() for one in frame])


@pytest.fixture
def sent() -> SentFrames:
    return SentFrames()


@pytest.fixture
def gathering(sent: SentFrames) -> Gathering[str, str]:
    return Gathering(
        sent.send, weigh=len, weight_max=6, shape=lambda asked: asked.islower(), names=lambda asked: asked[:1]
    )


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_requests_of_one_turn_share_a_frame(gathering: Gathering[str, str], sent: SentFrames) -> None:
    callers = [gathering.ask(one) for one in ("a", "b", "c")]
    assert sent.frames == []
    await turn()
    assert sent.frames == [["a", "b", "c"]]
    sent.answer()
    assert [await caller for caller in callers] == ["A", "B", "C"]


async def test_weight_shape_and_names_divide_frames(gathering: Gathering[str, str], sent: SentFrames) -> None:
    asked = ["aaaa", "bb", "c", "D", "e", "ee"]
    callers = [gathering.ask(one) for one in asked]
    for _ in asked:
        await turn()
        assert len(sent.frames) <= FRAMES_MAX + sum(caller.done() for caller in callers)
        if sent._waiting:
            sent.answer()
    assert sent.frames == [["aaaa", "bb"], ["c"], ["D"], ["e"], ["ee"]]
    assert [await caller for caller in callers] == [one.upper() for one in asked]


async def test_a_caller_that_stopped_waiting_is_not_sent(gathering: Gathering[str, str], sent: SentFrames) -> None:
    gone, stays = gathering.ask("a"), gathering.ask("b")
    gone.cancel()
    await turn()
    assert sent.frames == [["b"]]
    sent.answer()
    assert await stays == "B"


async def test_each_caller_gets_an_error_of_its_own(gathering: Gathering[str, str], sent: SentFrames) -> None:
    callers = [gathering.ask(one) for one in ("a", "b")]
    await turn()
    sent.answer(Unavailable("busy", throttled_ms=7))
    errors = await asyncio.gather(*callers, return_exceptions=True)
    assert errors[0] is not errors[1]
    assert [(type(one), getattr(one, "throttled_ms", 0)) for one in errors] == [(Unavailable, 7)] * 2
