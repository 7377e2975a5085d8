"""The assignment of buckets to shards."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from dejaq.domain.topic import Topic, TopicKind, TopicSettings
from dejaq.errors import Code, DejaqError
from dejaq.storage.postgres.connection.address import shard_dsns, shown
from dejaq.storage.sharded.placement import ShardInfo, ShardMap, first_map

TOPICS = [Topic(f"topic-{number}", number, TopicSettings(buckets=64)) for number in range(1, 21)]
UNITS = [(topic, bucket) for topic in TOPICS for bucket in range(64)]


def shards(count: int) -> ShardMap:
    return first_map({f"s{number}": f"postgres://h/{number}" for number in range(count)})


def test_buckets_are_spread_evenly() -> None:
    for count in (2, 3, 5):
        owners = Counter(shards(count).owner(*unit) for unit in UNITS)
        assert sum(owners.values()) == 1_280
        assert min(owners.values()) > 0.8 * 1_280 / count


def test_a_new_shard_gets_its_share_and_no_other_bucket_moves() -> None:
    before, after = shards(3), shards(4)
    moved = [unit for unit in UNITS if before.owner(*unit) != after.owner(*unit)]
    assert {after.owner(*unit) for unit in moved} == {3}
    assert 0.8 < len(moved) / (1_280 / 4) < 1.2


@pytest.mark.parametrize(
    "settings",
    [
        TopicSettings(buckets=1),
        TopicSettings(kind=TopicKind.PRIORITY),
        TopicSettings(kind=TopicKind.CRON),
        TopicSettings(expires=True),
    ],
)
def test_a_topic_that_needs_one_order_or_one_commit_is_on_the_first_shard(settings: TopicSettings) -> None:
    topic = Topic("whole", 7, settings)
    assert {shards(4).owner(topic, bucket) for bucket in range(settings.buckets)} == {0}


def test_changes_are_applied_in_the_order_of_topic_and_bucket() -> None:
    old, new = shards(2), shards(3)
    start = ShardMap(new.shards, changing="s2")
    assert all(start.owner(*unit) == old.owner(*unit) for unit in UNITS)
    midway = start.next(done=(7, 31), moving=(7, 40))
    assert midway.version == start.version + 1
    for topic, bucket in UNITS:
        unit = (topic.number, bucket)
        expected = new if unit <= (7, 31) else old
        assert midway.owner(topic, bucket) == expected.owner(topic, bucket)
        differs = old.owner(topic, bucket) != new.owner(topic, bucket)
        assert midway.frozen(topic, bucket) == (differs and (7, 31) < unit <= (7, 40))
        assert (midway.moves(topic, bucket) is not None) == differs
    end = midway.next(changing="", done=(0, 0), moving=(0, 0))
    assert all(end.owner(*unit) == new.owner(*unit) for unit in UNITS)


def test_a_map_is_parsed_as_it_was_written() -> None:
    written = ShardMap(shards(3).shards, version=9, changing="s2", done=(3, 4), moving=(3, 9))
    assert ShardMap.decode(written.encode()) == written
    assert "postgres" not in repr(replace(written, shards=(ShardInfo("a", 0, "postgres://u:secret@h/x"),)))


def test_shards_are_named_in_a_setting() -> None:
    assert shard_dsns("postgres://h/x") == {"shard-1": "postgres://h/x"}
    assert shard_dsns("postgres://h/x?a=b postgres://i/y") == {
        "shard-1": "postgres://h/x?a=b",
        "shard-2": "postgres://i/y",
    }
    assert shard_dsns("a=postgres://h/x b=postgres://i/y") == {"a": "postgres://h/x", "b": "postgres://i/y"}
    assert shown("a=postgres://u:secret@h/x b=postgres://i/y") == "a=postgres://u@h/x b=postgres://i/y"


@pytest.mark.parametrize(
    "setting", ["a=postgres://h/x a=postgres://i/y", "postgres://h/x postgres://h/x", "a/b=postgres://h/x"]
)
def test_a_setting_that_names_no_shards_is_refused(setting: str) -> None:
    with pytest.raises(DejaqError) as caught:
        shard_dsns(setting)
    assert caught.value.code is Code.INVALID_ARGUMENT
