"""A journal that 0.1.0 wrote is valid and readable in this release, which continues it.

`scripts/make_journal_fixture.py` made the archive.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from dejaq.journal.verification import verify
from dejaq.pipeline.intake.segments import check, new_segments

FIXTURE = Path(__file__).parents[2] / "fixtures" / "journal-0.1.tar.gz"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    with tarfile.open(FIXTURE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def test_a_journal_of_the_first_release_is_whole(old: Path) -> None:
    """G9 across releases: this release understands the signatures, chain and head of an older journal."""
    report = verify(old / "journal")
    assert report.whole
    assert report.segments == 2


def test_every_message_of_the_first_release_is_in_its_segments(old: Path) -> None:
    segments = new_segments(old / "journal", {})
    assert [check(segment).segment.events for segment in segments] == [segment.events for segment in segments]
    rows = [row for segment in segments for row in pq.read_table(segment.path).to_pylist()]
    created = {row["id"] for row in rows if row["kind"] == "created"}
    assert json.loads((old / "expected.json").read_text())["messages"].keys() <= created
