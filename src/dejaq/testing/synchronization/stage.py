"""The environment of the checks of a synchronization: members of a cluster that can be disconnected."""

from __future__ import annotations

import inspect
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Protocol

from dejaq.synchronization.base import Synchronization


@dataclass(frozen=True, slots=True)
class StageMember:
    """One broker's place, and the switch that disconnects it."""

    place: Synchronization
    cut: Callable[[], None]
    mend: Callable[[], None]


class Stage(Protocol):
    """Creates members."""

    def member(self, cluster: str) -> StageMember:
        """A member of this cluster that is not open yet."""


class ClusterScene:
    """One cluster with a unique name, and the members that joined it."""

    def __init__(self, stage: Stage) -> None:
        self.cluster = f"check-{secrets.token_hex(4)}"
        self._stage = stage
        self._members: list[StageMember] = []

    async def join(self, cluster: str = "") -> StageMember:
        """An open member."""
        member = self._stage.member(cluster or self.cluster)
        self._members.append(member)
        await member.place.open()
        return member

    async def place(self, cluster: str = "") -> Synchronization:
        """An open member that is never disconnected."""
        return (await self.join(cluster)).place

    async def end(self) -> None:
        """Close all members."""
        for member in self._members:
            member.mend()
            await member.place.close()


@dataclass(frozen=True, slots=True)
class SynchronizationCheck:
    """A named check."""

    name: str
    about: str
    body: Callable[[ClusterScene], Awaitable[None]]

    async def run(self, stage: Stage) -> None:
        """Run the check on a new cluster."""
        async with _scene(stage) as scene:
            await self.body(scene)


@asynccontextmanager
async def _scene(stage: Stage) -> AsyncIterator[ClusterScene]:
    scene = ClusterScene(stage)
    try:
        yield scene
    finally:
        await scene.end()


def checks_of(module: ModuleType) -> Iterator[SynchronizationCheck]:
    """Every public coroutine function that `module` defines, as a check named after both."""
    group = module.__name__.rpartition(".")[2]
    for name, body in vars(module).items():
        if inspect.iscoroutinefunction(body) and body.__module__ == module.__name__ and name[0] != "_":
            yield SynchronizationCheck(
                name=f"{group}.{name}", about=(inspect.getdoc(body) or "").partition("\n\n")[0], body=body
            )
