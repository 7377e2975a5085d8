"""Many messages that are changed together: which, and what became of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from dejaq.errors import Code
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.sdk.queries import filter_of
from dejaq.sdk.times import At

# How many ids go into one call, so that progress is seen.
BULK_ROWS = 1_000
EXAMPLES_MAX = 100

# Called with how many are dealt with so far, and of how many, where that is known.
OnProgress = Callable[[int, int | None], None]


@dataclass(frozen=True, slots=True)
class Where:
    """Which messages of an owner: `start <= time < end`, from the lowest to the highest of `priorities`, and `headers`.

    What is not given matches everything. The time of a message that is leased is the end of its lease.
    """

    start: At | None = None
    end: At | None = None
    priorities: tuple[int, int] | None = None
    headers: Mapping[str, str] | None = None

    def filter(self, group: str) -> carrier.Filter:
        """As it is sent."""
        return filter_of(
            self.start, self.end, group=group, priorities=self.priorities, headers=dict(self.headers or {})
        )


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
