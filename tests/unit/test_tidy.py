"""The house rules that a machine can keep. Each test names a rule; its failure lists who breaks it."""

from __future__ import annotations

import ast
import gc
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from dejaq.testing.conformance import CHECKS

ROOT = Path(__file__).resolve().parents[2]
GENERATED = ("src/dejaq/protocol/v1/", "src/dejaq/protocol/etcd/")
MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
FILE_BYTES_MAX = 1024 * 1024
VAGUE = frozenset({"utils", "util", "common", "helpers", "helper", "misc", "stuff"})
TEST_FOLDERS = frozenset({"unit", "conformance", "integration", "acceptance", "chaos", "fuzz", "spark"})


@cache
def project_files() -> list[Path]:
    """What git tracks, or would track: neither caches nor virtual environments."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    paths = (ROOT / name for name in sorted(set(listed.split("\0"))) if name)
    return [path for path in paths if path.is_file()]


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def python_files() -> list[Path]:
    return [p for p in project_files() if p.suffix == ".py" and not named(p).startswith(GENERATED)]


@cache
def tree_of(path: Path) -> ast.Module:
    # A collection in the middle of a parse can make CPython 3.11 miscount its depth and raise SystemError.
    gc.disable()
    try:
        return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    finally:
        gc.enable()


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def text_files() -> Iterator[tuple[Path, str]]:
    for path in project_files():
        try:
            yield path, path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def test_every_file_has_a_plain_name_and_is_small() -> None:
    """A data directory or a large artefact that was added by mistake shows here."""
    strange = [
        named(path)
        for path in project_files()
        if not re.fullmatch(r"[\w.][\w.\-]*(/[\w.][\w.\-]*)*", named(path)) or path.stat().st_size > FILE_BYTES_MAX
    ]
    assert strange == []


def test_a_module_is_one_noun_and_not_a_book() -> None:
    lengths = {named(path): len(path.read_text().splitlines()) for path in python_files()}
    assert {name: n for name, n in lengths.items() if n > MODULE_LINES_MAX} == {}


def test_a_function_fits_on_a_screen() -> None:
    long = [
        f"{named(path)}:{node.lineno} {node.name}"
        for path in python_files()
        for node in functions(path)
        if (node.end_lineno or node.lineno) - node.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert long == []


def test_no_module_has_a_name_that_says_nothing() -> None:
    vague = [
        named(path)
        for path in python_files()
        if VAGUE & {part.removeprefix("test_") for part in path.relative_to(ROOT).with_suffix("").parts}
    ]
    assert vague == []


def test_tests_wait_on_conditions_and_never_sleep() -> None:
    assert [
        f"{named(path)}:{line}"
        for path in python_files()
        if named(path).startswith("tests/")
        for line in sleeps(tree_of(path))
    ] == []


def sleeps(tree: ast.AST) -> Iterator[int]:
    """The lines that wait for a length of time; `asyncio.sleep(0)` only lets others run."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        owner = node.func.value
        if node.func.attr != "sleep" or not isinstance(owner, ast.Name):
            continue
        nothing = bool(node.args) and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
        if owner.id == "time" or (owner.id == "asyncio" and not nothing):
            yield node.lineno


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("time.sleep(0)", [1]),
        ("asyncio.sleep(0)", []),
        ("asyncio.sleep(0.01)", [1]),
        ("asyncio.sleep(delay)", [1]),
        ("clock.sleep(5)", []),
    ],
)
def test_the_sleep_rule_sees_sleeps(code: str, found: list[int]) -> None:
    assert list(sleeps(ast.parse(code))) == found


# Put together here, so that this file does not break its own rule.
MACHINE_PATH = re.compile("|".join(["/(?:wo" + "rk|ro" + "ot|ho" + "me)/[a-z]", r"(?<![\w$}])/t" + "mp/"]))
INDEX = re.compile("|".join(["(?:extra-)?index" + "-url", "find" + "-links", "trusted" + "-host", "/sim" + "ple/"]))


def lines_with(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{named(path)}:{number}"
        for path, text in text_files()
        for number, line in enumerate(text.splitlines(), start=1)
        if pattern.search(line)
    ]


def test_no_file_knows_the_machine_it_was_written_on() -> None:
    assert lines_with(MACHINE_PATH) == []


def test_no_file_names_a_package_index() -> None:
    assert lines_with(INDEX) == []


def test_requirements_are_exact_versions_and_nothing_else() -> None:
    loose = [
        f"{named(path)}: {line}"
        for path in project_files()
        if named(path).startswith("requirements/")
        for line in path.read_text().splitlines()
        if line.strip() and not re.fullmatch(r"[a-z0-9][a-z0-9-]*==[0-9][0-9a-z.]*", line)
    ]
    assert loose == []


def test_tests_stand_where_one_looks_for_them() -> None:
    astray = []
    for path in python_files():
        parts = path.relative_to(ROOT).parts
        if parts[0] != "tests" or len(parts) == 2:
            continue
        if parts[1] not in TEST_FOLDERS:
            astray.append(f"{named(path)}: not one of {sorted(TEST_FOLDERS)}")
        elif parts[1] == "unit" and not any(
            home.joinpath(*parts[2:-1]).is_dir() for home in (ROOT / "src/dejaq", ROOT)
        ):
            astray.append(f"{named(path)}: there is no folder of that name to be tested")
    assert astray == []


def test_every_test_module_has_tests() -> None:
    empty = [
        named(path)
        for path in python_files()
        if path.name.startswith("test_")
        and not any(
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
            for node in ast.walk(tree_of(path))
        )
        and "TestCase" not in path.read_text()
    ]
    assert empty == []


def test_every_test_cited_in_the_docs_exists() -> None:
    missing = []
    for path, text in text_files():
        if path.suffix != ".md":
            continue
        for file, name in re.findall(r"(tests/[\w/]+\.py)::(\w+)", text):
            where = ROOT / file
            known = (
                {node.name for node in ast.walk(tree_of(where)) if hasattr(node, "name")} if where.exists() else set()
            )
            if name not in known and f"{name} = " not in (where.read_text() if where.exists() else ""):
                missing.append(f"{named(path)}: {file}::{name}")
    assert missing == []


def guarantees() -> dict[str, str]:
    page = (ROOT / "docs/guarantees.md").read_text(encoding="utf-8")
    parts = re.split(r"^## (G\d+)", page, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_every_guarantee_is_proven_by_checks_and_tests() -> None:
    numbers = [int(name.removeprefix("G")) for name in guarantees()]
    assert numbers[:11] == list(range(1, 12))
    assert numbers == sorted(set(numbers))
    assert [name for name, text in guarantees().items() if not re.search(r"tests/[\w/]+\.py::\w+", text)] == []


def test_every_conformance_check_cited_in_the_docs_exists() -> None:
    known = {check.name for check in CHECKS}
    cited = {
        check
        for text in guarantees().values()
        for part in re.findall(r"\*\*Conformance checks\.\*\*(.*?)\n\n", text, re.DOTALL)
        for check in re.findall(r"`([^`]+)`", part)
    }
    assert len(cited) > 20
    assert cited - known == set()


def test_every_link_within_the_docs_leads_somewhere() -> None:
    broken = []
    for path, text in text_files():
        if path.suffix != ".md":
            continue
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"[a-z]+:|#", target):
                continue
            if not (path.parent / target.partition("#")[0]).exists():
                broken.append(f"{named(path)}: {target}")
    assert broken == []
