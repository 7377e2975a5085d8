"""The event loop of a broker's process."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import pytest

from dejaq.broker.loop.running import loop_factory, run


def test_the_loop_is_that_of_uvloop() -> None:
    factory = loop_factory()
    assert factory is not None
    loop = factory()
    assert type(loop).__module__ == "uvloop"
    loop.close()


@pytest.mark.parametrize("installed", [True, False])
def test_a_broker_runs_with_and_without_uvloop(installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_spec("uvloop") is not None
    if not installed:
        monkeypatch.setitem(sys.modules, "uvloop", None)
        assert loop_factory() is None
    ran: list[bool] = []

    async def main() -> None:
        ran.append(True)

    run(main())
    assert ran == [True]
