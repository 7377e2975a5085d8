"""R8: every backend answers as the memory model does, whatever happens to it.

`DEJAQ_MODEL_EXAMPLES` sets how many histories are tried, `DEJAQ_MODEL_STEPS` how long they are.
"""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from dejaq.testing.model import run_model
from tests.conformance.backends import BACKENDS

SIZE = settings(
    max_examples=int(os.environ.get("DEJAQ_MODEL_EXAMPLES", "100")),
    stateful_step_count=int(os.environ.get("DEJAQ_MODEL_STEPS", "40")),
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.timeout(0)
@pytest.mark.parametrize("backend", BACKENDS)
def test_storage_follows_the_model(backend: str):
    with tempfile.TemporaryDirectory() as folder:
        run_model(lambda: BACKENDS[backend](Path(tempfile.mkdtemp(dir=folder))), SIZE)
