"""Steps of the event loop have as many ids as fit into their time."""

from __future__ import annotations

from dejaq.storage.rocksdb.timeline.far.step_size import IDS_FIRST, IDS_MIN, STEP_S, StepSize


def settled(size: StepSize, id_s: float) -> int:
    """The size after steps in which each id took so long."""
    for _ in range(40):
        size.took(size.ids, size.ids * id_s)
    return size.ids


def test_a_step_follows_what_an_id_takes() -> None:
    size = StepSize(1_000)
    assert size.ids == IDS_FIRST
    for id_s in (5e-6, 20e-6, 3e-6):
        assert abs(settled(size, id_s) * id_s - STEP_S) < 0.1 * STEP_S


def test_a_step_has_bounds() -> None:
    assert settled(StepSize(1_000), 0.0) == 1_000
    assert settled(StepSize(250), 0.0) == 250
    assert settled(StepSize(1_000), 1.0) == IDS_MIN
    # Also where fewer ids than usual are allowed.
    assert settled(StepSize(10), 1.0) == 10


def test_one_long_step_is_not_taken_for_all() -> None:
    size = StepSize(1_000)
    settled(size, 5e-6)
    before = size.ids
    size.took(before, 2 * STEP_S)
    assert before / 2 < size.ids < before


def test_a_step_with_few_ids_says_nothing() -> None:
    """A part of its cost does not depend on how many ids there are."""
    size = StepSize(1_000)
    before = size.ids
    for _ in range(100):
        size.took(IDS_MIN - 1, 0.01)
    assert size.ids == before
