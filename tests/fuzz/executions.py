"""The number of inputs of each fuzz test: the CI sizes add up to 20,000; DEJAQ_CHAOS=full multiplies them by 250."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings

from tests.chaos.sizes import FULL

Test = TypeVar("Test", bound=Callable[..., Any])


def executions(count: int) -> Callable[[Test], Test]:
    """Run a test with this number of inputs; a failure prints the input and how to replay it."""
    return settings(
        max_examples=count * (250 if FULL else 1),
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
