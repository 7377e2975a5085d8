"""The limits of a create batch, each at its edge and one beyond it."""

from typing import Any

import pytest

from dejaq import limits
from dejaq.domain.batch import CreateBatch, IdSpan, LeaseSet, Outcomes, admit, whole
from dejaq.domain.ids import COUNTER_MAX, ProducerSession
from dejaq.domain.topic import TopicSettings
from dejaq.errors import Code, InvalidArgument, LimitExceeded

NOW = 1_700_000_000_000
SETTINGS = TopicSettings(buckets=4, max_future_ms=10_000, max_body_bytes=100)


def batch_of(count: int = 1, **columns: Any) -> CreateBatch:
    fields: dict[str, Any] = {
        "owner": "billing",
        "session": ProducerSession(NOW, 1),
        "sequence": 0,
        "ts": [NOW] * count,
        "bodies": [b""] * count,
    }
    return CreateBatch(**(fields | columns))


def refused(batch: CreateBatch, settings: TopicSettings = SETTINGS) -> dict[int, Code]:
    admit(batch, settings, NOW)
    return batch.refused


def test_the_time_of_a_relative_row_is_not_compared() -> None:
    batch = batch_of(6, relative_rows=[(1, 3), (5, 6)])
    assert [batch.accepts_time(row, NOW) for row in range(6)] == [True] * 6
    assert [batch.accepts_time(row, NOW - 1) for row in range(6)] == [False, True, True, False, False, True]
    assert not batch_of().accepts_time(0, NOW - 1)


def test_relative_rows_are_rows_of_the_batch() -> None:
    assert refused(batch_of(2, relative_rows=[(0, 2)])) == {}
    with pytest.raises(InvalidArgument):
        refused(batch_of(2, relative_rows=[(0, 3)]))


def test_a_plain_batch_is_admitted() -> None:
    assert refused(batch_of(3)) == {}
    assert refused(batch_of(3, ids=["a", "b", "c"])) == {}


def test_times_from_the_past_to_max_future() -> None:
    ids = ["a", "b", "c", "d"]
    ts = [0, -1, NOW + 10_000, NOW + 10_001]
    assert refused(batch_of(4, ids=ids, ts=ts)) == {1: Code.INVALID_TIME, 3: Code.TOO_FAR}


def test_times_end_with_the_year_9999() -> None:
    far = TopicSettings(max_future_ms=limits.TS_MS_MAX)
    ts = [limits.TS_MS_MAX, limits.TS_MS_MAX + 1, 2**63]
    found = refused(batch_of(3, ts=ts), far)
    assert found == {1: Code.INVALID_TIME, 2: Code.INVALID_TIME}


def test_bodies_up_to_the_topics_max() -> None:
    bodies = [b"", b"x" * 100, b"x" * 101]
    assert refused(batch_of(3, bodies=bodies)) == {2: Code.BODY_TOO_LARGE}


def test_bodies_up_to_the_largest_max() -> None:
    bodies = [bytes(limits.BODY_BYTES_MAX), bytes(limits.BODY_BYTES_MAX + 1)]
    assert refused(batch_of(2, bodies=bodies), TopicSettings()) == {1: Code.BODY_TOO_LARGE}


def test_priorities_are_32_bit() -> None:
    edges = [limits.PRIORITY_MIN - 1, limits.PRIORITY_MIN, limits.PRIORITY_MAX, limits.PRIORITY_MAX + 1]
    found = refused(batch_of(4, ids=["a", "b", "c", "d"], priorities=edges))
    assert found == {0: Code.INVALID_PRIORITY, 3: Code.INVALID_PRIORITY}


def test_invalid_ids_are_refused() -> None:
    ids = ["x" * limits.ID_CHARS_MAX, "x" * (limits.ID_CHARS_MAX + 1), "", "a b", "a\nb", "ok"]
    assert refused(batch_of(6, ids=ids)) == dict.fromkeys((1, 2, 3, 4), Code.INVALID_ID)


def test_the_first_of_equal_ids_in_a_batch_is_created() -> None:
    assert refused(batch_of(4, ids=["a", "b", "a", "a"])) == dict.fromkeys((2, 3), Code.DUPLICATE_IN_BATCH)


def test_an_id_whose_first_row_is_refused_is_not_a_duplicate() -> None:
    batch = batch_of(3, ids=["a", "a", "a"], bodies=[b"x" * 101, b"x", b"x"])
    assert refused(batch) == {0: Code.BODY_TOO_LARGE, 2: Code.DUPLICATE_IN_BATCH}


def test_a_row_keeps_its_first_refusal() -> None:
    batch = batch_of(1, ids=["a b"], ts=[-1], bodies=[b"x" * 101], priorities=[2**31])
    assert refused(batch) == {0: Code.INVALID_TIME}


def test_one_invalid_row_does_not_affect_the_others() -> None:
    batch = batch_of(3, ids=["a", "", "c"], ts=[NOW, NOW, NOW + 99_999], bodies=[b"a", b"b", b"c"])
    assert refused(batch) == {1: Code.INVALID_ID, 2: Code.TOO_FAR}


def test_generated_rows_are_sorted_by_time_and_priority() -> None:
    assert refused(batch_of(3, ts=[NOW, NOW, NOW + 1], priorities=[0, 1, -1])) == {}
    for wrong in ({"ts": [NOW + 1, NOW]}, {"ts": [NOW, NOW], "priorities": [1, 0]}):
        with pytest.raises(InvalidArgument, match="sorted"):
            admit(batch_of(2, **wrong), SETTINGS, NOW)


def test_natural_rows_need_no_order() -> None:
    assert refused(batch_of(2, ids=["a", "b"], ts=[NOW + 1, NOW], priorities=[1, 0])) == {}


def test_a_batch_holds_up_to_the_count() -> None:
    assert refused(batch_of(limits.BATCH_COUNT_MAX)) == {}
    with pytest.raises(LimitExceeded) as error:
        admit(batch_of(limits.BATCH_COUNT_MAX + 1), SETTINGS, NOW)
    assert error.value.code is Code.BATCH_TOO_LARGE


def test_a_batch_holds_up_to_the_bytes() -> None:
    size = limits.BODY_BYTES_MAX
    rows = limits.BATCH_BYTES_MAX // size
    full = batch_of(rows, bodies=[bytes(size)] * rows)
    assert refused(full, TopicSettings()) == {}
    for beyond in (
        batch_of(rows + 1, bodies=[bytes(size)] * rows + [b"x"]),
        batch_of(rows, bodies=[bytes(size)] * rows, headers=[b"x"] + [b""] * (rows - 1)),
    ):
        with pytest.raises(LimitExceeded) as error:
            admit(beyond, TopicSettings(), NOW)
        assert error.value.code is Code.BATCH_TOO_LARGE


@pytest.mark.parametrize(
    "columns",
    [
        {"ts": [], "bodies": []},
        {"bodies": []},
        {"bodies": [b"", b""]},
        {"ids": []},
        {"ids": ["a", "b"]},
        {"priorities": []},
        {"headers": [b"", b""]},
    ],
)
def test_columns_have_one_length_above_zero(columns: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="length"):
        admit(batch_of(1, **columns), SETTINGS, NOW)


def test_sequences_are_32_bit_counters() -> None:
    assert refused(batch_of(2, sequence=COUNTER_MAX - 1)) == {}
    for sequence in (-1, COUNTER_MAX):
        with pytest.raises(InvalidArgument, match="counter"):
            admit(batch_of(2, sequence=sequence), SETTINGS, NOW)


def test_the_bucket_is_one_of_the_topics() -> None:
    assert refused(batch_of(1, bucket=3)) == {}
    for bucket in (-1, 4):
        with pytest.raises(InvalidArgument, match="bucket"):
            admit(batch_of(1, bucket=bucket), SETTINGS, NOW)


def test_a_batch_knows_the_id_and_bucket_of_each_row() -> None:
    natural = batch_of(2, ids=["a", "b"])
    assert [natural.id_of(0), natural.id_of(1)] == ["a", "b"]
    assert natural.bucket_of(0, 64) == 3
    generated = batch_of(2, bucket=2, sequence=255)
    assert generated.id_of(1) == generated.session.prefix(2) + "00000100"
    assert generated.bucket_of(1, 64) == 2


def test_a_row_without_an_outcome_is_ok() -> None:
    outcomes = Outcomes(3, {1: Code.ALREADY_EXISTS, 2: Code.ID_TAKEN})
    assert [outcomes[row] for row in range(3)] == [Code.OK, Code.ALREADY_EXISTS, Code.ID_TAKEN]
    assert outcomes.failed == {2: Code.ID_TAKEN}
    assert Outcomes.all(2, Code.OK).codes == {}
    assert Outcomes.all(2, Code.LEASED).codes == {0: Code.LEASED, 1: Code.LEASED}


def test_spans_expand_to_the_ids_of_a_lease() -> None:
    lease = LeaseSet(
        lease_id=1,
        consumer="c",
        expires=NOW,
        spans=[IdSpan(2, prefix="f" * 24, first=9), IdSpan(1, ids=["natural"])],
        ts=[0, 0, 0],
        bodies=[b"", b"", b""],
    )
    assert lease.ids() == ["f" * 24 + "00000009", "f" * 24 + "0000000a", "natural"]
    assert len(lease) == 3


def test_ranges_lie_within_a_lease() -> None:
    assert whole(None, 5) == [(0, 5)]
    assert whole([(0, 1), (4, 5)], 5) == [(0, 1), (4, 5)]
    for wrong in ((0, 0), (3, 2), (-1, 1), (4, 6)):
        with pytest.raises(InvalidArgument):
            whole([(0, 1), wrong], 5)
