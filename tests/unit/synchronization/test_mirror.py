from dejaq.synchronization.base import Record, RecordChange
from dejaq.synchronization.mirror import Mirror


def record(key: str, revision: int) -> Record:
    return Record(key=key, value=b"", token=revision, revision=revision)


def test_a_reload_reports_only_differences() -> None:
    mirror = Mirror()
    mirror.apply([RecordChange(key, record(key, 1)) for key in "abc"])
    fresh = [record("a", 1), record("b", 5), record("d", 6)]
    assert mirror.reload(fresh) == [RecordChange("c", None), RecordChange("b", fresh[1]), RecordChange("d", fresh[2])]


def test_known_records_are_not_reported_again() -> None:
    mirror = Mirror()
    mirror.apply([RecordChange("a", record("a", 7))])
    assert (
        mirror.apply([RecordChange("a", record("a", 7)), RecordChange("a", record("a", 3)), RecordChange("z", None)])
        == []
    )
