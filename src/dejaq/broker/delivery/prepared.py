"""A change that a client asks for, as the storage gets it, and how its answer is made of that of the storage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dejaq.domain.batch import Outcomes
from dejaq.domain.changes import Change
from dejaq.domain.context import CallContext
from dejaq.errors import Refused
from dejaq.storage.base import Storage


@dataclass(frozen=True, slots=True)
class PreparedChange:
    """Changes of one frame. `finish` reads what the storage answered, and raises the refusal of a single change."""

    changes: Sequence[Change]
    now: int
    finish: Callable[[Sequence[Outcomes | Refused]], Outcomes]

    async def apply(self, storage: Storage, context: CallContext) -> Outcomes:
        """Have the storage apply it; raises its refusal."""
        return self.finish(await storage.apply(self.changes, self.now, context))


def only(answers: Sequence[Outcomes | Refused]) -> Outcomes:
    """The answer to a single change; raises its refusal."""
    (answer,) = answers
    if isinstance(answer, Refused):
        raise answer
    return answer
