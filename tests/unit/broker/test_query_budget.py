"""A client that asks for too much is asked to wait, and other clients are not."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from dejaq import limits
from dejaq.broker.calls.query_budget import QueryBudget
from dejaq.broker.metrics import QUERIES_REFUSED, Metrics
from dejaq.domain.context import IN_PROCESS, CallContext
from dejaq.errors import Code, DejaqError
from dejaq.timekeeper.clock import VirtualClock

GREEDY = CallContext(request_id="1", peer="ipv4:127.0.0.1:1000")
OTHER = CallContext(request_id="2", peer="ipv4:127.0.0.1:1001")


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def budget(clock: VirtualClock, metrics: Metrics) -> QueryBudget:
    return QueryBudget(clock, metrics)


async def spend(budget: QueryBudget, clock: VirtualClock, seconds: float, at_once: int = 1) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(at_once):
            await stack.enter_async_context(budget.query(GREEDY, "count"))
        await clock.advance(1_000 * seconds)


def refused(metrics: Metrics) -> float:
    return sum(metrics.value(QUERIES_REFUSED, str(code)) for code in (Code.OVERLOADED, Code.LIMIT_EXCEEDED))


@pytest.mark.parametrize("seconds", [0.1, 1.0, 20.0])
async def test_one_query_after_the_other_is_always_within_the_budget(
    budget: QueryBudget, clock: VirtualClock, seconds: float
) -> None:
    """However long each takes: a client on a slow machine must not be refused for its patience."""
    for _ in range(20):
        await spend(budget, clock, seconds)


async def test_a_client_above_its_time_learns_how_long_to_wait(
    budget: QueryBudget, clock: VirtualClock, metrics: Metrics
) -> None:
    await spend(budget, clock, 3.0, at_once=limits.QUERIES_PER_CLIENT_MAX)
    with pytest.raises(DejaqError) as caught:
        await spend(budget, clock, 0.0)
    assert caught.value.code is Code.OVERLOADED
    assert caught.value.retryable
    assert caught.value.throttled_ms > 0
    assert refused(metrics) == 1
    # Nobody else waits for it.
    async with budget.query(OTHER, "count"):
        pass
    await clock.advance(caught.value.throttled_ms)
    await spend(budget, clock, 0.0)


async def test_only_a_few_queries_of_a_client_run_at_one_time(budget: QueryBudget) -> None:
    running = longest = 0

    async def ask() -> None:
        nonlocal running, longest
        async with budget.query(GREEDY, "page"):
            running += 1
            longest = max(longest, running)
            for _ in range(5):
                await asyncio.sleep(0)
            running -= 1

    await asyncio.gather(*(ask() for _ in range(5 * limits.QUERIES_PER_CLIENT_MAX)))
    assert longest == limits.QUERIES_PER_CLIENT_MAX


@pytest.mark.parametrize("beyond", [0, 1])
async def test_a_client_with_too_many_waiting_queries_is_refused(budget: QueryBudget, beyond: int) -> None:
    end = asyncio.Event()

    async def ask() -> None:
        async with budget.query(GREEDY, "page"):
            await end.wait()

    most = limits.QUERIES_PER_CLIENT_MAX + limits.QUERIES_WAITING_PER_CLIENT_MAX
    asking = [asyncio.ensure_future(ask()) for _ in range(most + beyond)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    end.set()
    answers = await asyncio.gather(*asking, return_exceptions=True)
    found = [answer for answer in answers if isinstance(answer, DejaqError)]
    assert [error.code for error in found] == [Code.OVERLOADED] * beyond
    async with budget.query(GREEDY, "page"):
        pass


async def test_a_query_that_takes_too_long_ends_with_a_clear_error(
    budget: QueryBudget, monkeypatch: pytest.MonkeyPatch, metrics: Metrics
) -> None:
    """The same query would take as long again, so the client does not repeat it."""
    monkeypatch.setattr(limits, "QUERY_MS_MAX", 10)
    with pytest.raises(DejaqError, match="shorter time range") as caught:
        async with budget.query(GREEDY, "histogram"):
            await asyncio.Event().wait()
    assert caught.value.code is Code.LIMIT_EXCEEDED
    assert not caught.value.retryable
    assert refused(metrics) == 1


async def test_a_query_that_fails_gives_its_place_back(budget: QueryBudget) -> None:
    for _ in range(3 * limits.QUERIES_PER_CLIENT_MAX):
        with pytest.raises(TimeoutError):
            async with budget.query(GREEDY, "count"):
                raise TimeoutError


async def test_a_client_in_the_same_process_has_no_budget(budget: QueryBudget, clock: VirtualClock) -> None:
    own = CallContext(request_id="3", peer=IN_PROCESS)
    async with AsyncExitStack() as stack:
        for _ in range(10 * limits.QUERIES_PER_CLIENT_MAX):
            await stack.enter_async_context(budget.query(own, "count"))
        await clock.advance(10_000)
    async with budget.query(own, "count"):
        pass


async def test_clients_that_have_left_are_forgotten(budget: QueryBudget, clock: VirtualClock) -> None:
    for number in range(3_000):
        async with budget.query(CallContext(request_id="4", peer=f"ipv4:127.0.0.1:{number}"), "count"):
            pass
    assert len(budget) <= 1_000
