from dejaq.synchronization.base import Change, Record
from dejaq.synchronization.mirror import Mirror


def record(key: str, revision: int) -> Record:
    return Record(key=key, value=b"", token=revision, revision=revision)


def test_a_reload_tells_only_what_differs():
    mirror = Mirror()
    mirror.apply([Change(key, record(key, 1)) for key in "abc"])
    fresh = [record("a", 1), record("b", 5), record("d", 6)]
    assert mirror.reload(fresh) == [Change("c", None), Change("b", fresh[1]), Change("d", fresh[2])]


def test_what_is_known_is_no_news():
    mirror = Mirror()
    mirror.apply([Change("a", record("a", 7))])
    assert mirror.apply([Change("a", record("a", 7)), Change("a", record("a", 3)), Change("z", None)]) == []
