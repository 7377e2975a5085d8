"""The possible steps of a comparison."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

# Delay, priority, name of a body, headers.
PlannedRow = tuple[int, int, str, bytes]


class StepKind(Enum):
    """The kinds of steps of a transaction."""

    CREATE = auto()
    MOVE = auto()
    CANCEL = auto()
    DELETE = auto()
    RELEASE = auto()


class SettleKind(Enum):
    """The ways in which a consumer may settle rows of its lease."""

    DELETE = auto()
    EXTEND = auto()
    RELEASE = auto()
    RELEASE_EACH = auto()
    RECALL = auto()
    REJECT = auto()


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One step of a transaction: its kind, and numbers that choose its message, row or lease."""

    kind: StepKind
    pick: int
    recent: bool
    delay: int
    owner: str
    # For a create: a natural id, or None for a generated one, and the name of the body.
    id: str = ""
    body: str = "made"
