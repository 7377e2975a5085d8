"""A wait ends when the condition is true, or with an error that names the condition."""

from __future__ import annotations

from itertools import count

import pytest

from dejaq.testing.waiting import PATIENCE, eventually, patient, wait_until


async def test_a_condition_may_be_a_function_or_a_coroutine() -> None:
    numbers = count()
    await eventually(lambda: next(numbers) > 2, within=5, poll=0)

    async def later() -> bool:
        return next(numbers) > 5

    await eventually(later, within=5, poll=0)
    wait_until(lambda: next(numbers) > 8, within=5, poll=0)
    assert next(numbers) == 10


async def test_the_error_names_the_condition_that_did_not_become_true() -> None:
    with pytest.raises(TimeoutError, match="pigs fly"):
        await eventually(lambda: False, within=0, what="pigs fly")
    with pytest.raises(TimeoutError, match="pigs fly"):
        wait_until(lambda: False, within=0, what="pigs fly")


async def test_a_slow_machine_has_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PATIENCE)
    assert patient(2) == 2
    monkeypatch.setenv(PATIENCE, "1.5")
    assert patient(2) == 3
    with pytest.raises(TimeoutError, match=r"not within 0\.015 s: pigs fly"):
        await eventually(lambda: False, within=0.01, what="pigs fly")
    with pytest.raises(TimeoutError, match=r"not within 0\.015 s: pigs fly"):
        wait_until(lambda: False, within=0.01, what="pigs fly")
