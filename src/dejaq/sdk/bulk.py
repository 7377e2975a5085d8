"""What became of many messages that were changed together, found by a filter or named by id."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from dejaq.errors import Code

# How many ids go into one call, so that progress is seen.
BULK_ROWS = 1_000
EXAMPLES_MAX = 100

# Called with how many are dealt with so far, and of how many, where that is known.
OnProgress = Callable[[int, int | None], None]


@dataclass(slots=True)
class BulkResult:
    """Counts of what was done and refused, and the first ids that were refused."""

    done: int = 0
    refused: dict[Code, int] = field(default_factory=dict)
    examples: dict[str, Code] = field(default_factory=dict)

    @property
    def matched(self) -> int:
        """How many messages were tried."""
        return self.done + sum(self.refused.values())

    @property
    def ok(self) -> bool:
        """Whether nothing was refused."""
        return not self.refused

    def add(self, ids: Sequence[str], codes: Mapping[int, Code]) -> None:
        """Count the outcomes of some ids; a row that is not in `codes` is done."""
        self.done += len(ids) - len(codes)
        for row, code in codes.items():
            self.refused[code] = self.refused.get(code, 0) + 1
            if len(self.examples) < EXAMPLES_MAX:
                self.examples[ids[row]] = code
