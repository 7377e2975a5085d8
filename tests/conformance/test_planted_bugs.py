"""R19: the conformance suite and the model find every bug that is planted, in every backend."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from dejaq.testing.conformance import CHECKS
from dejaq.testing.model.machine import run_model
from tests.conformance.backends import BACKENDS
from tests.conformance.planted import BUGS, Around, planted

STORES = ("memory", "rocksdb", "postgres", "sharded")
BY_NAME = {check.name: check for check in CHECKS}
SIZE = settings(
    # A search ends with the first example that shows the bug, so a high limit costs nothing.
    max_examples=4_000,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
@pytest.mark.parametrize("backend", STORES)
async def test_the_suite_finds(backend: str, bug: type[Around], tmp_path: Path) -> None:
    check = BY_NAME[BUGS[bug][0]]
    with pytest.raises(AssertionError):
        await check.run(planted(bug, BACKENDS[backend](tmp_path / "planted")))


@pytest.mark.parametrize("backend", STORES)
async def test_the_suite_finds_nothing_without_a_bug(backend: str, tmp_path: Path) -> None:
    for number, name in enumerate(sorted({name for name, _ in BUGS.values()})):
        await BY_NAME[name].run(planted(Around, BACKENDS[backend](tmp_path / str(number))))


# The rarest bug is found after half a minute of processor time.
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("bug", [bug for bug, (_, seen) in BUGS.items() if seen], ids=lambda bug: bug.__name__)
def test_the_model_finds(bug: type[Around], tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        run_model(lambda: planted(bug, BACKENDS["memory"](tmp_path)), SIZE)


def test_the_model_finds_nothing_without_a_bug(tmp_path: Path) -> None:
    run_model(lambda: planted(Around, BACKENDS["memory"](tmp_path)), settings(SIZE, max_examples=20))
