"""`make dist` builds what users install: the wheel works in an environment that has only its dependencies."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import httpx
import pytest

from dejaq.testing.servers.process import free_port
from dejaq.testing.waiting import patient, wait_until
from tests.acceptance.process import environment
from tests.acceptance.test_readme import ADDRESS, PROGRAMS

ROOT = Path(__file__).resolve().parents[2]
BUILD_SECONDS = 300
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def run(*command: str | Path, folder: Path) -> str:
    """Run a command outside this repository, without its paths, and return its output."""
    done = subprocess.run(
        command, cwd=folder, env=environment(""), capture_output=True, text=True, timeout=BUILD_SECONDS, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-2_000:]}\n{done.stderr[-2_000:]}"
    return done.stdout


def needed(names: list[str]) -> set[str]:
    """These distributions and all their dependencies."""
    found: set[str] = set()
    while names:
        name = re.sub(r"[-_.]+", "-", names.pop()).lower()
        if name not in found:
            found.add(name)
            wanted = distribution(name).requires or []
            names += [re.split(r"[^\w.-]", one)[0] for one in wanted if "extra ==" not in one and "python_" not in one]
    return found


def link_distribution(name: str, site: Path) -> None:
    """Make an installed distribution importable from another environment."""
    installed = distribution(name)
    for top in {Path(file).parts[0] for file in installed.files or [] if not str(file).startswith("..")}:
        if top != "__pycache__" and not (site / top).exists():
            (site / top).symlink_to(Path(str(installed.locate_file(top))).resolve())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the source distribution, which is built from a copy of its source files."""
    folder = tmp_path_factory.mktemp("dist")
    for name in ("src", "requirements"):
        ignored = shutil.ignore_patterns("*.egg-info", "__pycache__")
        shutil.copytree(ROOT / name, folder / "copy" / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, folder / "copy")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, folder / "copy", folder=folder)
    assert (folder / f"dejaq_mq-{VERSION}.tar.gz").exists()
    return folder / f"dejaq_mq-{VERSION}-py3-none-any.whl"


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The programs of a new environment that has the wheel and the dependencies of its core, and nothing else."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    (site,) = folder.glob("lib/python3*/site-packages")
    # pip installs into the environment of this interpreter, and downloads no package from an index.
    install: list[str | Path] = [
        "-m",
        "pip",
        f"--python={folder}",
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
        wheel,
    ]
    run(sys.executable, *install, folder=folder)
    core = [line.split("==")[0] for line in (ROOT / "requirements/core.txt").read_text().split()]
    for name in needed(core):
        link_distribution(name, site)
    yield folder / "bin"
    shutil.rmtree(folder)


def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    packages = [ROOT / "src/dejaq", ROOT / "src/pyspark_dejaq"]
    files = {path for package in packages for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    held = set(zipfile.ZipFile(wheel).namelist())
    assert {str(path.relative_to(ROOT / "src")) for path in files} <= held


def test_the_version_is_the_newest_of_the_changelog() -> None:
    newest = re.search(r"^## \[(.+?)\] - (?:\d{4}-\d\d-\d\d|Unreleased)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert newest is not None
    assert newest[1] == VERSION


def test_the_first_program_of_the_readme_runs_on_the_wheel(programs: Path, tmp_path: Path) -> None:
    """A broker on a directory and the README's producer, from an environment that has no access to this repository."""
    where = run(programs / "python", "-c", "import dejaq; print(dejaq.__file__)", folder=tmp_path)
    assert Path(where.strip()).is_relative_to(programs.parent)
    assert VERSION in run(programs / "dejaq", "--version", folder=tmp_path)
    port = free_port()
    serving = subprocess.Popen(
        [programs / "dejaq", "serve", "--data", tmp_path / "data", "--listen", f"127.0.0.1:{port}"],
        cwd=tmp_path,
        env=environment(""),
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: listens(port), within=30, what="the broker from the wheel listens")
        program = tmp_path / "producer.py"
        program.write_text(PROGRAMS["producer.py"].replace(ADDRESS, f"dejaq://127.0.0.1:{port}"))
        said = run(programs / "python", "-W", "error", program, folder=tmp_path)
        assert said == "pending: 4\n"
        serving.terminate()
        assert serving.wait(patient(20)) == 0
    finally:
        serving.kill()
        serving.wait()


def test_the_pages_are_served_from_the_wheel(programs: Path, tmp_path: Path) -> None:
    """Templates, scripts and styles are in the wheel, and `dejaq web` finds them there."""
    (site,) = programs.parent.glob("lib/python3*/site-packages")
    for name in needed([line.split("==")[0] for line in (ROOT / "requirements/web.txt").read_text().split()]):
        link_distribution(name, site)
    port = free_port()
    serving = subprocess.Popen(
        [programs / "dejaq", "web", "--listen", f"127.0.0.1:{port}", "--url", f"dejaq://127.0.0.1:{free_port()}"],
        cwd=tmp_path,
        env=environment(""),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: listens(port), within=30, what="the gateway from the wheel listens")
        for path, status, part in (
            ("/", 503, "NO_BROKER"),
            ("/static/timeline.js", 200, "class Timeline"),
            ("/static/style.css", 200, "--accent"),
            ("/api/v1/openapi.json", 200, '"openapi":"3.1.0"'),
        ):
            answer = httpx.get(f"http://127.0.0.1:{port}{path}", timeout=patient(20), trust_env=False)
            assert (answer.status_code, part in answer.text) == (status, True), path
        serving.terminate()
        assert serving.wait(patient(20)) == 0
    finally:
        serving.kill()
        serving.wait()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
