"""The files in deploy/ are the ones that the docs show to administrators and that the tests run."""

from __future__ import annotations

from pathlib import Path

import pytest

from dejaq.config import load_config

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(path for path in (ROOT / "deploy").iterdir() if path.is_file())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_docs_show_the_file_as_it_is(path: Path) -> None:
    assert path.read_text() in (ROOT / "docs/operations.md").read_text()


def test_a_broker_accepts_the_configuration_file() -> None:
    config = load_config(ROOT / "deploy/dejaq.toml", env={})
    assert (config.cluster, config.advertise) == ("shop", "10.0.0.1:7400")
    assert config.storage is not None
    assert config.storage.startswith("postgres://dejaq@10.0.0.1,10.0.0.2,10.0.0.3/")
