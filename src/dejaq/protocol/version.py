"""The version of the protocol, and of this package."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version

# What this side speaks, and the oldest version it still understands.
PROTOCOL = 3
PROTOCOL_MINIMUM = 1


@cache
def package_version() -> str:
    """The installed version of DejaQ. The first call lists the directories of installed packages."""
    try:
        return version("dejaq-mq")
    except PackageNotFoundError:
        return "0+unknown"
