import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dejaq import limits
from dejaq.domain.ids import (
    COUNTER_MAX,
    ProducerSession,
    bucket_of,
    generated_ids,
    parse_generated,
    valid_id,
    valid_ids,
)

ID_TEXT = st.from_regex(r"[0-9A-Za-z._:\-]{1,64}", fullmatch=True)
SESSIONS = st.builds(ProducerSession, st.integers(0, 2**48 - 1), st.integers(0, 2**32 - 1))


@pytest.mark.parametrize("one", ["a", "0", "x" * limits.ID_CHARS_MAX, "order:7.a_b-c", "-", "..", "A" * 32])
def test_valid_ids_are_accepted(one: str) -> None:
    assert valid_id(one)
    assert valid_ids([one])


@pytest.mark.parametrize(
    "one",
    ["", "x" * (limits.ID_CHARS_MAX + 1), "a b", "a/b", "ä", "a\n", "\na", "a\nb", "a\x00", "٣", "a,b", "{}"],
)
def test_invalid_ids_are_refused(one: str) -> None:
    assert not valid_id(one)
    assert not valid_ids([one])
    assert not valid_ids(["good", one, "fine"])


@given(st.lists(st.text(max_size=70), min_size=1, max_size=5))
def test_a_column_is_valid_when_each_id_is(ids: list[str]) -> None:
    assert valid_ids(ids) == all(map(valid_id, ids))


@given(SESSIONS, st.integers(0, limits.BUCKETS_MAX - 1), st.integers(0, COUNTER_MAX))
def test_a_generated_id_contains_session_bucket_and_counter(
    session: ProducerSession, bucket: int, counter: int
) -> None:
    (one,) = generated_ids(session.prefix(bucket), counter, 1)
    assert len(one) == 32
    assert valid_id(one)
    assert parse_generated(one) == (session, bucket, counter)


def test_generated_ids_count_up() -> None:
    prefix = ProducerSession(1, 2).prefix(3)
    assert generated_ids(prefix, 254, 3) == [prefix + "000000fe", prefix + "000000ff", prefix + "00000100"]
    assert generated_ids(prefix, 0, 0) == []


@pytest.mark.parametrize("one", ["", "f" * 31, "f" * 33, "F" * 32, "g" * 32, "order-7", "f" * 31 + "\n"])
def test_other_texts_are_not_generated(one: str) -> None:
    assert parse_generated(one) is None


@given(SESSIONS)
def test_a_session_packs_into_ten_bytes(session: ProducerSession) -> None:
    assert len(session.pack()) == 10
    assert ProducerSession.unpack(session.pack()) == session


@given(SESSIONS, SESSIONS)
def test_packed_sessions_sort_by_start(one: ProducerSession, other: ProducerSession) -> None:
    key = [(session.start_ms, session.number) for session in (one, other)]
    assert (key[0] < key[1]) == (one.pack() < other.pack())


@pytest.mark.parametrize("packed", [b"", b"x" * 9, b"x" * 11])
def test_a_session_of_another_length_is_refused(packed: bytes) -> None:
    with pytest.raises(ValueError, match="ten bytes"):
        ProducerSession.unpack(packed)


@given(ID_TEXT, st.integers(1, limits.BUCKETS_MAX))
def test_the_bucket_of_an_id_is_its_crc(one: str, buckets: int) -> None:
    assert bucket_of(one, buckets) == zlib.crc32(one.encode()) % buckets


def test_the_bucket_of_an_id_never_changes() -> None:
    assert [bucket_of(one, 64) for one in ("a", "order:7", "x" * 64)] == [3, 12, 18]
