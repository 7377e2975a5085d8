"""What an administrator copies from the docs is what lies in deploy/, and what the tests run."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "deploy").iterdir())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_docs_show_the_file_as_it_is(path: Path) -> None:
    assert path.read_text() in (ROOT / "docs/operations.md").read_text()
