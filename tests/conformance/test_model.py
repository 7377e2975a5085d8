"""R8: every backend answers as the memory model does, whatever happens to it.

`DEJAQ_MODEL_EXAMPLES` sets how many histories are tried, `DEJAQ_MODEL_STEPS` how long they are, and
`DEJAQ_MODEL_SHRINK=1` looks for the shortest that fails. Each failure prints the line that reproduces it.
"""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from dejaq.testing.model import run_model
from tests.conformance.backends import BACKENDS

PHASES = {Phase.explicit, Phase.reuse, Phase.generate}
SIZE = settings(
    max_examples=int(os.environ.get("DEJAQ_MODEL_EXAMPLES", "100")),
    stateful_step_count=int(os.environ.get("DEJAQ_MODEL_STEPS", "40")),
    deadline=None,
    print_blob=True,
    report_multiple_bugs=False,
    phases=PHASES | ({Phase.shrink} if os.environ.get("DEJAQ_MODEL_SHRINK") else set()),
    suppress_health_check=list(HealthCheck),
)


# The same store twice: the second time, with less room, fewer histories do; so they must where each step asks a server.
SHARES = {"rocksdb_on_disk": 3, "postgres": 6}
SIZES = {name: settings(SIZE, max_examples=max(1, SIZE.max_examples // SHARES.get(name, 1))) for name in BACKENDS}


@pytest.mark.timeout(0)
@pytest.mark.parametrize("backend", BACKENDS)
def test_storage_follows_the_model(backend: str):
    """G3, G4, G5, G6, G9: whatever happens, the answers are the model's, and the journal alone tells what stands."""
    # What is tried here is logic, not the disk: where there is a disk in memory, syncs cost nothing.
    memory_disk = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory_disk) as folder:
        run_model(lambda: BACKENDS[backend](Path(tempfile.mkdtemp(dir=folder))), SIZES[backend], journal=True)
