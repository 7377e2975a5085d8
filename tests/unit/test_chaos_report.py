"""The report of the fault tests takes its figures from pytest's own reports only."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
REPORT = """<testsuites><testsuite>
<testcase classname="tests.chaos.test_kill" name="test_r1_r9_killed[rocksdb]" time="20.5">
<properties><property name="figure" value="10 kills, 0 faults"/></properties></testcase>
<testcase classname="tests.chaos.test_kill" name="test_r1_paused" time="2"><failure message="no"/></testcase>
<testcase classname="tests.conformance.test_model" name="test_storage_follows_the_model[memory]" time="3"/>
<testcase classname="tests.unit.test_config" name="test_a_bad_value" time="1"/>
</testsuite></testsuites>"""


@pytest.fixture(scope="module")
def chaos_report() -> ModuleType:
    spec = importlib.util.spec_from_file_location("chaos_report", ROOT / "scripts/chaos_report.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Data classes find their module by its name.
    sys.modules["chaos_report"] = module
    spec.loader.exec_module(module)
    return module


def test_a_figure_is_reported_once_though_its_test_has_two_numbers(chaos_report: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(REPORT)
    tallies = {one.number: one for one in chaos_report.read([tmp_path / "report.xml"], {1, 8, 9}, size="CI")}
    assert {number: (one.passed, one.failed, one.seconds) for number, one in tallies.items()} == {
        1: (1, 1, 22.5),
        8: (1, 0, 3.0),
        9: (1, 0, 20.5),
    }
    assert tallies[1].figures == ["10 kills, 0 faults"]
    assert tallies[9].figures == []


def figures_of(tree: ast.AST) -> Iterator[str]:
    """A pattern for each figure that a test module records."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "record_property":
            texts = [part for part in ast.walk(node.args[1]) if isinstance(part, ast.JoinedStr)]
            for text in texts[:1]:
                yield "".join(
                    re.escape(str(part.value)) if isinstance(part, ast.Constant) else ".*" for part in text.values
                )


def test_stored_results_have_the_form_that_the_program_writes(chaos_report: ModuleType) -> None:
    """Two lines of full size had no duration and a text that no test writes: they had been written by hand."""
    written = [
        pattern for path in (ROOT / "tests").rglob("*.py") for pattern in figures_of(ast.parse(path.read_text()))
    ]
    assert written
    for kept in json.loads((ROOT / "docs/reliability.json").read_text()):
        tally = chaos_report.Tally(**kept)
        assert tally.seconds > 0
        for figure in tally.figures:
            assert any(re.fullmatch(pattern, figure) for pattern in written), figure
