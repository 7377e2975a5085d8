"""What a process leaves on the disk in memory is removed by the next one, and nothing else is."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dejaq.testing.servers import memory_folder

CHILD = """
from dejaq.testing.servers import memory_folder
memory_folder.root = lambda: __import__("pathlib").Path({place!r})
path = memory_folder.new_folder("child")
(path / "data").write_text("x")
print(path, flush=True)
input()
memory_folder.remove_folder(path)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(memory_folder, "root", lambda: tmp_path)
    yield tmp_path
    memory_folder._remove_forgotten_once.cache_clear()


def process_in(place: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process, and the folder that it uses."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD.format(place=str(place))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert child.stdout is not None
    return child, Path(child.stdout.readline().strip())


def test_the_folder_of_a_killed_process_is_removed_by_the_next_one(place: Path) -> None:
    used, used_folder = process_in(place)
    killed, left = process_in(place)
    others = place / "dejaq-elsewhere"
    others.mkdir()
    assert (used_folder / "data").exists()
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert (left / "data").exists()
    memory_folder._remove_forgotten_once.cache_clear()
    own = memory_folder.new_folder("own")
    assert sorted(place.iterdir()) == sorted([used_folder, others, own])
    assert memory_folder.remove_forgotten(place) == []
    memory_folder.remove_folder(own)
    used.communicate("\n")
    assert list(place.iterdir()) == [others]


def test_a_folder_is_removed_at_the_end_of_its_block(place: Path) -> None:
    with memory_folder.folder("block") as path:
        (path / "more").mkdir()
        assert memory_folder.remove_forgotten(place) == []
    assert not path.exists()


def test_a_folder_that_was_removed_before_it_was_locked_is_made_again(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, tried = memory_folder._open, list[Path]()

    def late(path: Path) -> int | None:
        found = opened(path)
        tried.append(path)
        if len(tried) == 1:
            path.rmdir()
        return found

    memory_folder._remove_forgotten_once(place)
    monkeypatch.setattr(memory_folder, "_open", late)
    with memory_folder.folder("race") as path:
        assert path.exists()
        assert path != tried[0]
