"""The tutorial, run from its first step to its last in an empty folder, as a reader runs it."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

from dejaq.testing.servers.process import BrokerProcess
from tests.acceptance.process import SECONDS_MAX, environment, serve

TUTORIAL = Path(__file__).resolve().parents[2] / "docs/tutorial.md"
STEPS = re.compile(
    r"```python\n# (?P<file>\w+\.py)\n(?P<code>.*?)```|```console\n(?P<console>.*?)```|<!-- (?P<mark>.*?) -->",
    re.DOTALL,
)
ADDRESS = "dejaq://127.0.0.1:7400"
RESTART = "the broker is killed and started again here"


def commands(console: str) -> list[tuple[str, str]]:
    """Each command of a console block, with the output that the page shows below it."""
    parts = re.split(r"^\$ ", console, flags=re.MULTILINE)[1:]
    return [(part.partition("\n")[0], part.partition("\n")[2]) for part in parts]


def run(command: str, folder: Path, url: str) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=folder,
        env={**environment(url), "PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def restart(broker: BrokerProcess) -> None:
    async def again() -> None:
        broker.kill()
        await broker.restart()

    asyncio.run(again())


def test_every_step_of_the_tutorial_prints_what_the_page_shows(tmp_path: Path) -> None:
    folder = tmp_path / "cinema"
    folder.mkdir()
    restarts = 0
    with serve(folder / "data") as broker:
        for step in STEPS.finditer(TUTORIAL.read_text()):
            if step["file"]:
                (folder / step["file"]).write_text(step["code"].replace(ADDRESS, broker.url))
            elif step["mark"]:
                assert step["mark"] == RESTART
                restart(broker)
                restarts += 1
            else:
                for command, shown in commands(step["console"]):
                    assert (command, run(command, folder, broker.url)) == (command, shown)
    assert restarts == 1
