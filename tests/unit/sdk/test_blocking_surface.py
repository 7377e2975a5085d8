"""U19: the blocking classes have every public name of the async classes."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import dejaq
import dejaq.sync

MEANS = {"__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__", "__anext__": "__next__"}
SPECIAL = frozenset({*MEANS, "__len__", "__iter__", "__getitem__", "__call__"})
# The client does not create it, and its code is not generated.
BY_HAND = {"Broker"}
WRAPPED = sorted(set(dejaq.sync.__all__) - {"connect", "Batches"} - BY_HAND)


def public(kind: type) -> set[str]:
    parts = [part for part in kind.__mro__ if part.__module__.startswith("dejaq.")]
    return {name for part in parts for name in vars(part) if not name.startswith("_") or name in SPECIAL}


def is_asynchronous(kind: type) -> bool:
    return any(
        name in MEANS or inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member)
        for name, member in vars(kind).items()
        if not name.startswith("_") or name in MEANS
    )


def test_every_async_class_of_the_sdk_has_a_blocking_class() -> None:
    """U19: this fails for a class that is added to the async client and not to the script."""
    asynchronous = {
        name for name in dejaq.__all__ if isinstance(kind := getattr(dejaq, name), type) and is_asynchronous(kind)
    }
    assert asynchronous - set(dejaq.sync.__all__) == set()


@pytest.mark.parametrize("name", WRAPPED)
def test_a_blocking_class_has_every_public_name_of_the_async_one(name: str) -> None:
    """U19: cron.add_many, history, preview, take, stop, paused and worker were missing."""
    blocking = getattr(dejaq.sync, name)
    wanted = {MEANS.get(member, member) for member in public(getattr(dejaq, name))}
    assert {member for member in wanted if not hasattr(blocking, member)} == set()


@pytest.mark.parametrize("name", WRAPPED)
def test_a_blocking_method_has_the_parameters_of_the_async_one(name: str) -> None:
    """U19: signatures were `**options: Any`."""
    different = []
    for member in sorted(public(getattr(dejaq, name))):
        theirs, ours = (
            getattr(getattr(dejaq, name), member),
            getattr(getattr(dejaq.sync, name), MEANS.get(member, member)),
        )
        if inspect.isfunction(theirs) and parameters(theirs) != parameters(ours) and member != "__call__":
            different.append(member)
        assert ours is not None
    assert different == []


def test_connect_has_the_parameters_of_the_async_one() -> None:
    assert parameters(dejaq.sync.connect) == parameters(dejaq.connect)


def parameters(function: Any) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())
