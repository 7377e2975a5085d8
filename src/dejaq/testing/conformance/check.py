"""One check of a storage: a sentence and the coroutine that verifies it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from types import ModuleType

from dejaq.storage.base import Storage
from dejaq.testing.conformance.scene import Scene, StorageFactory

# A store with several parts does these only within one part: transactions, and one order over all buckets.
ON_ONE_PART = frozenset(
    {
        "transactions_survive",
        "a_transaction_decides_as_its_changes",
        "lease_ids_grow",
        "the_end_of_a_lease_is_told_once",
        "several_leases_are_deleted_from_at_once",
        "a_transaction_refers_to_large_bodies",
    }
)

__all__ = ["Check", "Storage", "StorageFactory", "checks_of"]


@dataclass(frozen=True, slots=True)
class Check:
    """A named check; `restarts` means that the contents must survive close and open.

    With `on_one_part` a store with several parts is checked with topics that are on one of them.
    """

    name: str
    about: str
    restarts: bool
    body: Callable[[Scene], Awaitable[None]]
    on_one_part: bool = False

    async def run(self, factory: StorageFactory) -> None:
        """Run the check on a new scene; raises AssertionError when the storage fails it."""
        scene = await Scene.begin(factory, on_one_part=self.on_one_part)
        try:
            await self.body(scene)
        finally:
            await scene.end()


def checks_of(module: ModuleType, *, restarts: bool = False, on_one_part: bool = False) -> Iterator[Check]:
    """Every public coroutine function that `module` defines, as a check named after both."""
    group = module.__name__.rpartition(".")[2]
    for name, body in vars(module).items():
        if inspect.iscoroutinefunction(body) and body.__module__ == module.__name__ and name[0] != "_":
            about = (inspect.getdoc(body) or "").partition("\n\n")[0]
            yield Check(f"{group}.{name}", about, restarts, body, on_one_part or name in ON_ONE_PART)
