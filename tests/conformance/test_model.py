"""R8: every backend answers like the memory model, for random histories of calls and faults.

`DEJAQ_MODEL_EXAMPLES` is the number of histories, `DEJAQ_MODEL_STEPS` their length, and `DEJAQ_MODEL_SHRINK=1` searches
for the shortest history that fails. Each failure prints the line that reproduces it.
"""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from dejaq.testing.model.machine import run_model
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


# These backends run fewer histories: rocksdb_on_disk is the same store as rocksdb, and the others call a server in each
# step.
SHARES = {"rocksdb_on_disk": 3, "postgres": 6, "sharded": 12}
# The slowest backends are cut into parts with histories of their own, so that several test workers share them.
PARTS = {"rocksdb": 4, "rocksdb_on_disk": 2, "rocksdb_levels": 4, "postgres": 2}
CASES = [(name, part) for name in BACKENDS for part in range(PARTS.get(name, 1))]


def _size(backend: str) -> settings:
    share = SHARES.get(backend, 1) * PARTS.get(backend, 1)
    return settings(SIZE, max_examples=max(1, SIZE.max_examples // share))


@pytest.mark.timeout(0)
@pytest.mark.parametrize(("backend", "part"), CASES)
def test_storage_follows_the_model(backend: str, part: int, tmp_path: Path) -> None:
    """G3, G4, G5, G6, G9: every answer equals the model's, and the state can be rebuilt from the journal alone."""
    run_model(lambda: BACKENDS[backend](Path(tempfile.mkdtemp(dir=tmp_path))), _size(backend), journal=True)
