"""U24: the programs of docs/testing.md, run as a reader runs them, with the pytest plugin that DejaQ provides."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/testing.md").read_text(encoding="utf-8")
PROGRAMS = {match[1]: match[0] for match in re.findall(r"```python\n(# (\w+\.py)\n.*?)```", PAGE, re.DOTALL)}
PLUGIN = "dejaq.testing.plugin"
STRICT = """
import pytest

@pytest.mark.asyncio
async def test_strict(dejaq_client, dejaq_time):
    await dejaq_client.create_topic("mail")
    await dejaq_time.advance(1)
"""


def run(folder: Path, *options: str) -> str:
    # An installed project has an entry point for the plugin; pytest must not be given the plugin a second time.
    known = any(one.value == PLUGIN for one in entry_points(group="pytest11"))
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "-p", "no:randomly"]
    command += ["-o", "asyncio_default_fixture_loop_scope=function"]
    command += [] if known else ["-p", PLUGIN]
    done = subprocess.run(
        [*command, *options, "."], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout[-6_000:] + done.stderr[-2_000:]
    return done.stdout


def test_the_programs_of_the_page_pass(tmp_path: Path) -> None:
    assert sorted(PROGRAMS) == ["test_blocking.py", "test_reminder.py", "test_schedule.py"]
    assert PAGE.count("```python") == len(PROGRAMS)
    for name, text in PROGRAMS.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert "4 passed" in run(tmp_path, "-o", "asyncio_mode=auto")


def test_the_fixtures_work_in_the_strict_mode_too(tmp_path: Path) -> None:
    (tmp_path / "test_strict.py").write_text(STRICT, encoding="utf-8")
    assert "1 passed" in run(tmp_path, "-o", "asyncio_mode=strict")


def test_pytest_finds_the_plugin_once_the_project_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"dejaq": PLUGIN}


@pytest.mark.parametrize("name", ["dejaq_client", "dejaq_time", "dejaq_broker", "dejaq_sync_client", "dejaq_sync_time"])
def test_every_fixture_is_on_the_page(name: str) -> None:
    assert f"`{name}`" in PAGE
