"""P1: every record that a lake lacks is named: before its first, between two, and after its last."""

from __future__ import annotations

from pathlib import Path

import pytest

from dejaq.errors import PipelineError
from dejaq.journal.extents import OriginExtent, journal_extents
from dejaq.journal.keys import SigningKey
from dejaq.journal.ledger import Ledger
from dejaq.journal.retention import RetentionPolicy
from dejaq.pipeline.lake.commit import Commit
from dejaq.pipeline.lake.gaps import Gap, begins, gaps
from dejaq.pipeline.lake.ranges import Ranges
from tests.unit.journal.records import created


def lake(*pairs: tuple[int, int], origin: str = "a", **begins: int) -> Commit:
    return Commit(version=1, records={origin: Ranges.of(pairs)}, begins=begins)


@pytest.mark.parametrize(
    ("commit", "journal", "missing"),
    [
        (lake((1, 9)), None, []),
        (lake((7, 9)), None, [Gap("a", 1, 6)]),
        (lake((1, 3), (7, 9)), None, [Gap("a", 4, 6)]),
        (lake((1, 9)), {"a": OriginExtent(last=12)}, [Gap("a", 10, 12)]),
        (lake((1001, 1001)), {"a": OriginExtent(kept_from=1001, last=1001)}, [Gap("a", 1, 1000, dropped=True)]),
        (
            lake((1, 3), (9, 9)),
            {"a": OriginExtent(kept_from=6, last=9)},
            [Gap("a", 4, 5, dropped=True), Gap("a", 6, 8)],
        ),
        (lake((1, 9)), {"b": OriginExtent(last=2)}, [Gap("b", 1, 2)]),
        (lake((501, 600)), {"a": OriginExtent(begin=501, last=600)}, []),
        (lake((501, 600), a=501), None, []),
    ],
)
def test_each_missing_record_is_named(
    commit: Commit, journal: dict[str, OriginExtent] | None, missing: list[Gap]
) -> None:
    """P1: a gap at the beginning, in the middle or at the end is reported; records of another origin are no gap."""
    assert gaps(commit, journal) == missing


def test_the_statements_of_a_journal_contain_its_beginning_and_end(tmp_path: Path) -> None:
    """P1: retention, the head, and the beginning of a new origin, for several brokers."""
    directory = tmp_path / "journal"
    ledger = Ledger.open(directory / "one", origin="a", key=SigningKey.of(tmp_path / "a"))
    for number in range(1, 4):
        ledger.append([created(number, [f"m-{number}"])], 1_000 * number)
    ledger.drop(RetentionPolicy(age_ms_max=1), 2_500)
    later = Ledger.open(directory / "two", origin="b", key=SigningKey.of(tmp_path / "b"), new_origin=True)
    later.append([created(41, ["m-41"])], 1_000)
    found = journal_extents(directory)
    assert found == {"a": OriginExtent(kept_from=3, last=3), "b": OriginExtent(begin=41, last=41)}
    assert begins(found) == {"b": 41}


def test_a_damaged_statement_is_an_error_of_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.head").write_text("nonsense")
    with pytest.raises(PipelineError, match=r"a\.head is not a statement of a journal; run `dejaq audit verify"):
        journal_extents(tmp_path)


def test_a_lake_remembers_where_an_origin_begins() -> None:
    commit = lake((41, 50), a=41)
    assert Commit.from_json(commit.to_json(), "commit") == commit
