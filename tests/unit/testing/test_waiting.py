"""Waiting ends when the condition holds, or with an error that says for what."""

from __future__ import annotations

from itertools import count

import pytest

from dejaq.testing.waiting import eventually, wait_until


async def test_a_condition_may_be_a_function_or_a_coroutine() -> None:
    numbers = count()
    await eventually(lambda: next(numbers) > 2, within=5, poll=0)

    async def later() -> bool:
        return next(numbers) > 5

    await eventually(later, within=5, poll=0)
    wait_until(lambda: next(numbers) > 8, within=5, poll=0)
    assert next(numbers) == 10


async def test_what_does_not_happen_is_said() -> None:
    with pytest.raises(TimeoutError, match="pigs fly"):
        await eventually(lambda: False, within=0, what="pigs fly")
    with pytest.raises(TimeoutError, match="pigs fly"):
        wait_until(lambda: False, within=0, what="pigs fly")
