"""The keys of leases: many keys are packed as few runs, and unpacked."""

import random

import pytest

from dejaq.domain.batch import IdSpan
from dejaq.domain.ids import ProducerSession, generated_ids
from dejaq.storage.postgres.keys import MARK, LeaseKeys, bounds_of, id_of, spans_of


def generated(bucket: int, *counters: int) -> list[str]:
    prefix = ProducerSession(1_700_000_000_000, 5).prefix(bucket)
    return [generated_ids(prefix, counter, 1)[0] + MARK for counter in counters]


KEYS = {
    "one run": generated(1, *range(500)),
    "two runs": generated(1, *range(8), *range(9, 20)),
    "another bucket": generated(1, 4, 5) + generated(2, 6, 7),
    "out of order": generated(1, 4, 5, 7, 6, 8),
    "twice": generated(1, 5, 5, 7),
    "natural": ["b", "a", "c"],
    "mixed": ["a", *generated(1, 4, 5), "b", *generated(1, 6)],
    # It sorts between the two, and together they are as many keys as a run of three.
    "natural between": [*generated(1, 5), id_of(generated(1, 5)[0]) + "x", *generated(1, 7)],
    "none": [],
}


@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
def test_spans_contain_every_key_in_order(keys: list[str]) -> None:
    spans = spans_of(keys)
    assert [one for span in spans for one in span.expand()] == [id_of(key) for key in keys]
    assert LeaseKeys(spans).listed() == keys
    assert len(LeaseKeys(spans)) == len(keys)


def test_runs_are_found_completely() -> None:
    assert len(spans_of(KEYS["one run"])) == 1
    assert [span.count for span in spans_of(KEYS["two runs"])] == [8, 11]
    assert [span.count for span in spans_of(KEYS["another bucket"])] == [2, 2]


@pytest.mark.parametrize("keys", [keys for keys in KEYS.values() if keys])
def test_packed_keys_are_unpacked(keys: list[str]) -> None:
    partial = [key if row % 3 else "" for row, key in enumerate(keys)]
    for listed in (keys, partial):
        assert LeaseKeys.unpack(LeaseKeys(spans_of(listed)).pack()).listed() == listed


def test_any_range_can_be_cut() -> None:
    keys = [*KEYS["two runs"], "a", "b", *KEYS["another bucket"]]
    chance = random.Random(3)
    for _ in range(200):
        start = chance.randrange(len(keys))
        end = chance.randrange(start, len(keys)) + 1
        assert LeaseKeys(LeaseKeys(spans_of(keys)).cut([(start, end)])).listed() == keys[start:end]


def test_the_bounds_of_a_run_are_its_first_and_last_key() -> None:
    first, last = generated(1, 8, 10)
    assert bounds_of([IdSpan(3, prefix=first[:24], first=8), IdSpan(2, ids=["a", "b"])]) == (
        [first, "a", "b"],
        [last, "a", "b"],
    )
