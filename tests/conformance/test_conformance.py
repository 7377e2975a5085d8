"""Every storage backend passes every check of the conformance suite."""

from pathlib import Path

import pytest

from dejaq.testing.conformance import CHECKS, Check
from tests.conformance.backends import BACKENDS, ENCRYPTED

ALL = {**BACKENDS, **ENCRYPTED}
# The memory store runs every check with sealed bodies, the embedded one seals by itself and runs them too, and the
# others run those in which bodies move.
MOVING = ("large.", "dead_letters.", "restart.", "snapshots.", "create.")
SEALS_ITSELF = "encrypted_rocksdb"
# The journal has check values that confirm no guess of a body, and where bodies are sealed one by one, sealed sizes.
OF_PLAIN_CHECKS = frozenset(
    {
        "journal.creates_are_told",
        "journal.owners_changes_are_told",
        "journal.dead_letters_are_told",
        "journal.the_journal_alone_tells_what_stands",
    }
)
OF_PLAIN_BODIES = {
    SEALS_ITSELF: OF_PLAIN_CHECKS | {"large.the_journal_tells_the_size_of_a_large_body"},
    # The key of dead letters is removed with their topic.
    "others": OF_PLAIN_CHECKS | {"dead_letters.redrive_to_a_missing_topic_loses_nothing"},
}


def checks_of(backend: str) -> list[Check]:
    """The checks that a backend runs."""
    if not backend.startswith("encrypted_"):
        return list(CHECKS)
    left_out = OF_PLAIN_BODIES.get(backend, OF_PLAIN_BODIES["others"])
    sealed = [check for check in CHECKS if check.name not in left_out]
    if backend in ("encrypted_memory", SEALS_ITSELF):
        return sealed
    return [check for check in sealed if check.name.startswith(MOVING)]


@pytest.mark.parametrize(
    ("backend", "check"),
    [pytest.param(backend, check, id=f"{backend}-{check.name}") for backend in ALL for check in checks_of(backend)],
)
async def test_storage(backend: str, check: Check, tmp_path: Path) -> None:
    await check.run(ALL[backend](tmp_path / "store"))


def test_the_suite_runs_on_sealed_bodies() -> None:
    """A backend without cases would pass unseen."""
    assert min(len(checks_of(backend)) for backend in ("encrypted_memory", SEALS_ITSELF)) > 200
    assert {backend for backend in ALL if backend.startswith("encrypted_")} == set(ENCRYPTED) != set()


def test_only_known_checks_are_left_out_with_sealed_bodies() -> None:
    assert {check.name for check in CHECKS} >= frozenset().union(*OF_PLAIN_BODIES.values())


def test_every_check_has_a_description() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    assert [check.name for check in CHECKS if not check.about.rstrip().endswith(".")] == []
