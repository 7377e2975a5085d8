"""R15: the key codec keeps numbers, order and tables distinct for every input."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dejaq.storage.rocksdb.engine import keys

places = st.tuples(
    st.integers(0, 2**16 - 1), st.integers(0, 2**63 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)
)


@given(st.integers(0, 2**32 - 1), places)
def test_a_run_key_is_parsed_to_its_place(topic: int, place: tuple[int, int, int, int]) -> None:
    key = keys.run(topic, *place)
    assert keys.unpack_place(keys.place(key)) == place
    assert keys.at_place(keys.RUN, topic, keys.place(key)) == key
    assert keys.gone(key)[1:] == key[1:]


@given(st.integers(0, 2**32 - 1), places, places)
def test_run_keys_sort_as_their_numbers(
    topic: int, one: tuple[int, int, int, int], other: tuple[int, int, int, int]
) -> None:
    assert (keys.run(topic, *one) < keys.run(topic, *other)) == (one < other)


@given(st.binary(min_size=1, max_size=8).filter(lambda prefix: set(prefix) != {255}), st.binary(max_size=8))
def test_after_is_greater_than_every_key_with_the_prefix(prefix: bytes, rest: bytes) -> None:
    assert prefix + rest < keys.after(prefix)
    assert keys.after(prefix) > prefix


@given(st.integers(0, 2**32 - 2), st.sampled_from(keys.OF_TOPIC), places)
def test_a_topic_prefix_bounds_its_keys_only(topic: int, table: bytes, place: tuple[int, int, int, int]) -> None:
    prefix = keys.of_topic(table, topic)
    inside = keys.at_place(table, topic, keys.run(topic, *place)[5:])
    outside = keys.at_place(table, topic + 1, keys.run(topic, *place)[5:])
    assert prefix <= inside < keys.after(prefix) <= outside


def test_tables_have_different_first_bytes() -> None:
    tables = [keys.META, *keys.OF_TOPIC]
    assert len(set(tables)) == len(tables)
