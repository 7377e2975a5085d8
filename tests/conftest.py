"""What holds for every test."""

import gc
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# A machine that is busy with other tests is slow now and then; that is no fault of what is tested.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")


@pytest.fixture(autouse=True)
def _small_heap() -> Iterator[None]:
    """Collect only what the test itself made.

    A store that closes collects garbage, and models of stores close hundreds; beside all that other tests have left in
    the process, each collection took half a second.
    """
    gc.freeze()
    yield
    gc.unfreeze()
