"""U19: the types that a type checker reports for a program that uses the client."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from zlib import crc32

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("typed_program.py")
SETTINGS = """
[mypy]
strict = True
warn_unreachable = True
"""
NO_ANY = "# mypy: disallow-any-expr, disallow-any-explicit, disallow-any-unimported\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("typed")


def checked(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    """The output of mypy for a program in a folder of its own, under a name of its own."""
    name = f"program_{crc32(program.encode())}.py"
    (folder / name).write_text(NO_ANY + program, encoding="utf-8")
    (folder / "mypy.ini").write_text(SETTINGS, encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", str(folder / "cache"), name],
        cwd=folder,
        env={"MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_no_expression_of_a_users_program_has_the_type_any(folder: Path) -> None:
    """U19: the values of the blocking client had the type Any."""
    result = checked(folder, PROGRAM.read_text(encoding="utf-8"))
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("lease.headers", "lease.nosuch"),
        ("consumer.paused", "consumer.nosuch"),
        ("dejaq.Schedule", "dejaq.Nosuch"),
        ("added.next", "added.nosuch"),
        ("zone=", "zome="),
    ],
)
def test_a_name_that_does_not_exist_is_an_error(folder: Path, right: str, wrong: str) -> None:
    """U19: mypy accepted the attribute access `lease.nosuch`."""
    program = PROGRAM.read_text(encoding="utf-8")
    assert right in program
    result = checked(folder, program.replace(right, wrong, 1))
    assert result.returncode == 1, result.stdout + result.stderr
    assert wrong.rpartition(".")[2].rstrip("=") in result.stdout
