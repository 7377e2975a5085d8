"""The project's rules that a machine can check. Each test checks one; its failure lists the places that break it."""

from __future__ import annotations

import ast
import gc
import re
import statistics
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from dejaq.testing.conformance import CHECKS
from tests.unit import texts
from tests.unit.banned_phrases import BANNED

ROOT = Path(__file__).resolve().parents[2]
GENERATED = ("src/dejaq/protocol/v1/", "src/dejaq/protocol/etcd/")
MODULE_LINES_MAX = 500
TEST_LINES_MAX = 600
FOLDER_MODULES_MAX = 16
MEDIAN_LINES_MAX = 150
FUNCTION_LINES_MAX = 70
FILE_BYTES_MAX = 1024 * 1024
VAGUE = frozenset({"utils", "util", "common", "helpers", "helper", "misc", "stuff"})
# Class names that two modules share because they name the same thing, each with the reason. Any other shared name must
# be changed.
SAME_MEANING = {
    "Broker": "`dejaq.sync.Broker` is `dejaq.Broker` for a program without asyncio.",
    "Reject": "A worker raises `dejaq.Reject`, and the change of that name rejects the message.",
    "Transaction": "A client collects a transaction, and the storage receives it.",
    "Verdict": "The storage's answer to a transaction, and the same answer at the client.",
}
TEST_FOLDERS = frozenset({"unit", "conformance", "integration", "acceptance", "chaos", "fuzz", "regressions", "spark"})


@cache
def project_files() -> list[Path]:
    """The files that git tracks or would track: neither caches nor virtual environments."""
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
    # A garbage collection during a parse can make CPython 3.11 miscount its depth and raise SystemError.
    gc.disable()
    try:
        return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    finally:
        gc.enable()
        # All trees together have millions of nodes, which each collection would look at.
        gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _forgotten_trees() -> Iterator[None]:
    """Without them, the collections at the end of the process took nine seconds."""
    yield
    tree_of.cache_clear()


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in texts.statements(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def text_files() -> Iterator[tuple[Path, str]]:
    for path in project_files():
        try:
            yield path, path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def test_every_file_has_a_plain_name_and_is_small() -> None:
    """This finds a data directory or a large artefact that was added by mistake."""
    strange = [
        named(path)
        for path in project_files()
        if not re.fullmatch(r"[\w.][\w.\-]*(/[\w.][\w.\-]*)*", named(path)) or path.stat().st_size > FILE_BYTES_MAX
    ]
    assert strange == []


def lengths_of_source() -> dict[str, int]:
    """The lines of each module, without modules that only name a package."""
    return {
        named(path): len(path.read_text(encoding="utf-8").splitlines())
        for path in python_files()
        if named(path).startswith("src/") and path.name != "__init__.py"
    }


def test_a_module_has_one_subject_and_fits_the_limit() -> None:
    lengths = {named(path): len(path.read_text(encoding="utf-8").splitlines()) for path in python_files()}
    most = {name: MODULE_LINES_MAX if name.startswith("src/") else TEST_LINES_MAX for name in lengths}
    too_long = {name for name, lines in lengths.items() if lines > most[name]}
    assert too_long == set()


def test_the_median_module_is_short() -> None:
    assert statistics.median(lengths_of_source().values()) <= MEDIAN_LINES_MAX


def test_a_folder_has_few_modules() -> None:
    modules = Counter(name.rpartition("/")[0] for name in lengths_of_source())
    assert {folder: n for folder, n in modules.items() if n > FOLDER_MODULES_MAX} == {}


def test_a_function_fits_on_a_screen() -> None:
    long = [
        f"{named(path)}:{node.lineno} {node.name}"
        for path in python_files()
        for node in functions(path)
        if (node.end_lineno or node.lineno) - node.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert long == []


def test_no_module_has_a_vague_name() -> None:
    vague = [
        named(path)
        for path in python_files()
        if VAGUE & {part.removeprefix("test_") for part in path.relative_to(ROOT).with_suffix("").parts}
    ]
    assert vague == []


def test_tests_wait_on_conditions_and_never_sleep() -> None:
    """A test whose workload itself takes time uses `take_time` of tests/pace.py."""
    assert [
        f"{named(path)}:{line}"
        for path in python_files()
        if named(path).startswith("tests/") and named(path) != "tests/pace.py" and ".sleep(" in path.read_text()
        for line in sleeps(tree_of(path))
    ] == []


def sleeps(tree: ast.AST) -> Iterator[int]:
    """The lines that wait for a length of time; `asyncio.sleep(0)` only lets other tasks run."""
    real_clocks = {
        name.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and ast.unparse(node.value).endswith("SystemClock()")
        for name in node.targets
        if isinstance(name, ast.Name)
    }
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "sleep"):
            continue
        owner = ast.unparse(node.func.value)
        nothing = bool(node.args) and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
        real = owner == "time" or owner in real_clocks or owner.endswith("SystemClock()")
        if real or (owner == "asyncio" and not nothing):
            yield node.lineno


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("time.sleep(0)", [1]),
        ("asyncio.sleep(0)", []),
        ("asyncio.sleep(0.01)", [1]),
        ("asyncio.sleep(delay)", [1]),
        ("clock.sleep(5)", []),
        ("SystemClock().sleep(5)", [1]),
        ("clock.SystemClock().sleep(5)", [1]),
        ("WORK = SystemClock()\nWORK.sleep(1)", [2]),
    ],
)
def test_the_sleep_rule_finds_sleeps(code: str, found: list[int]) -> None:
    assert list(sleeps(ast.parse(code))) == found


# The pattern is split into pieces, so that this file does not break its own rule.
MACHINE_PATH = re.compile("|".join(["/(?:wo" + "rk|ro" + "ot|ho" + "me)/[a-z]", r"(?<![\w$}])/t" + "mp/"]))
INDEX = re.compile("|".join(["(?:extra-)?index" + "-url", "find" + "-links", "trusted" + "-host", "/sim" + "ple/"]))


CONFLICT = re.compile(r"^(?:<{7} |={7}$|>{7} )", re.MULTILINE)


def lines_with(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{named(path)}:{number}"
        for path, text in text_files()
        if pattern.search(text)
        for number, line in enumerate(text.splitlines(), start=1)
        if pattern.search(line)
    ]


def test_no_file_names_a_path_of_one_machine() -> None:
    assert lines_with(MACHINE_PATH) == []


def test_no_file_has_the_marks_of_a_merge_conflict() -> None:
    assert lines_with(CONFLICT) == []


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


def test_tests_are_in_the_expected_folders() -> None:
    misplaced = []
    for path in python_files():
        parts = path.relative_to(ROOT).parts
        if parts[0] != "tests" or len(parts) == 2:
            continue
        if parts[1] not in TEST_FOLDERS:
            misplaced.append(f"{named(path)}: not one of {sorted(TEST_FOLDERS)}")
        elif parts[1] == "unit" and not any(
            home.joinpath(*parts[2:-1]).is_dir() for home in (ROOT / "src/dejaq", ROOT)
        ):
            misplaced.append(f"{named(path)}: there is no folder of that name to be tested")
    assert misplaced == []


def test_every_test_module_has_tests() -> None:
    empty = [
        named(path)
        for path in python_files()
        if path.name.startswith("test_")
        and not any(node.name.startswith("test_") for node in functions(path))
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
                {node.name for node in texts.statements(tree_of(where)) if hasattr(node, "name")}
                if where.exists()
                else set()
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


def test_every_link_within_the_docs_has_a_target() -> None:
    broken = []
    for path, text in text_files():
        if path.suffix != ".md":
            continue
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"[a-z]+:", target):
                continue
            file, _, anchor = target.partition("#")
            page = path.parent / file if file else path
            if not page.exists() or (anchor and anchor not in anchors(page)):
                broken.append(f"{named(path)}: {target}")
    assert broken == []


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_path_in_the_architecture_and_the_decisions_exists() -> None:
    """A path in code font starts at the root of the repository."""
    missing = []
    for path in [ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs/decisions").glob("*.md"))]:
        for name in re.findall(r"`((?:src|tests|scripts|bench|docs|proto|examples|deploy)/[^`\s]+)`", path.read_text()):
            if not (ROOT / name).exists():
                missing.append(f"{named(path)}: {name}")
    assert missing == []


def test_every_decision_is_in_the_index_with_its_title() -> None:
    index = (ROOT / "docs/decisions/README.md").read_text()
    pages = [path for path in sorted((ROOT / "docs/decisions").glob("*.md")) if path.name != "README.md"]
    numbers = [path.name[:4] for path in pages]
    assert len(numbers) == len(set(numbers))
    entries = [(path.name[:4], path.read_text().partition("\n")[0].removeprefix("# "), path.name) for path in pages]
    assert [name for number, title, name in entries if f"- [{number} {title}]({name})" not in index] == []


def test_every_text_is_plain_english() -> None:
    """Each fault names the phrase, the reason, and the replacement (`tests/unit/banned_phrases.py`)."""
    faults = [
        f"{named(path)}:{text.line}: '{match[0]}': {banned.reason} Write: {banned.instead}"
        for path in project_files()
        if path.suffix in (".md", ".py") and not named(path).startswith(GENERATED)
        for read in [list(read_texts(path))]
        for banned in BANNED
        if banned.find("\n".join(text.text for text in read))
        for text in read
        if (match := banned.find(text.text))
    ]
    assert faults == []


def read_texts(path: Path) -> Iterator[texts.Text]:
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return texts.markdown(source)
    return texts.python(source, tree_of(path), messages=named(path).startswith("src/"))


def test_a_class_name_has_one_meaning() -> None:
    """Two modules define a class of the same name only where it means the same: SAME_MEANING."""
    modules: dict[str, set[str]] = {}
    for path in python_files():
        # The blocking client has the same classes as the client from which it is generated.
        if named(path).startswith("src/") and not named(path).startswith("src/dejaq/sdk/blocking/"):
            for node in texts.statements(tree_of(path)):
                if isinstance(node, ast.ClassDef):
                    modules.setdefault(node.name, set()).add(named(path))
    shared = {name for name, places in modules.items() if len(places) > 1}
    assert shared - SAME_MEANING.keys() == set(), "choose another name"
    assert SAME_MEANING.keys() - shared == set(), "these names are not shared now: remove their entries"
