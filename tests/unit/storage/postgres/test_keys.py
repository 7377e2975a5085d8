"""Keys of leases: many as few runs, and back."""

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
    # It sorts between the two and makes as many of them as a run of three.
    "natural between": [*generated(1, 5), id_of(generated(1, 5)[0]) + "x", *generated(1, 7)],
    "none": [],
}


@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
def test_spans_tell_every_key_in_order(keys: list[str]) -> None:
    spans = spans_of(keys)
    assert [one for span in spans for one in span.expand()] == [id_of(key) for key in keys]
    assert LeaseKeys(spans).listed() == keys
    assert len(LeaseKeys(spans)) == len(keys)


def test_runs_are_found_whole() -> None:
    assert len(spans_of(KEYS["one run"])) == 1
    assert [span.count for span in spans_of(KEYS["two runs"])] == [8, 11]
    assert [span.count for span in spans_of(KEYS["another bucket"])] == [2, 2]


@pytest.mark.parametrize("keys", [keys for keys in KEYS.values() if keys])
def test_packed_keys_are_unpacked(keys: list[str]) -> None:
    told = [key if row % 3 else "" for row, key in enumerate(keys)]
    for listed in (keys, told):
        assert LeaseKeys.unpack(LeaseKeys(spans_of(listed)).pack()).listed() == listed


def test_any_ranges_are_cut() -> None:
    keys = [*KEYS["two runs"], "a", "b", *KEYS["another bucket"]]
    chance = random.Random(3)
    for _ in range(200):
        start = chance.randrange(len(keys))
        end = chance.randrange(start, len(keys)) + 1
        assert LeaseKeys(LeaseKeys(spans_of(keys)).cut([(start, end)])).listed() == keys[start:end]


def test_a_run_is_bounded_by_its_ends() -> None:
    first, last = generated(1, 8, 10)
    assert bounds_of([IdSpan(3, prefix=first[:24], first=8), IdSpan(2, ids=["a", "b"])]) == (
        [first, "a", "b"],
        [last, "a", "b"],
    )
