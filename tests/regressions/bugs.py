"""Planted bugs: their definition, and how a process plants one.

Every fixed defect has an entry: code that brings the defect back by replacing a part of the product, and the test that
must then fail. A regression test that passes with its bug planted proves nothing.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dejaq.testing.waiting import PATIENCE

VARIABLE = "DEJAQ_PLANTED_BUG"
ROOT = Path(__file__).resolve().parents[2]
SITE = Path(__file__).resolve().parent / "site"


@dataclass(frozen=True)
class Bug:
    """Code that brings a defect back, and the test that finds it."""

    plant: Callable[[], None]
    test: str


def areas() -> list[str]:
    """The modules that list planted bugs."""
    return sorted(module.name for module in pkgutil.iter_modules([str(Path(__file__).parent / "planted")]))


def bugs_of(area: str) -> Mapping[str, Bug]:
    """The planted bugs of one module, by name."""
    module = importlib.import_module(f"tests.regressions.planted.{area}")
    bugs: Mapping[str, Bug] = module.BUGS
    return bugs


def plant(name: str) -> None:
    """Plant the bug `area:name` in this process."""
    area, _, bug = name.partition(":")
    bugs_of(area)[bug].plant()


def environment(name: str) -> dict[str, str]:
    """The environment of a process that has the bug from its start, as do its child processes."""
    path = os.pathsep.join([str(SITE), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    # The test waits for something that the bug prevents, so a short wait is enough.
    return {**os.environ, VARIABLE: name, "PYTHONPATH": path, PATIENCE: "1"}
