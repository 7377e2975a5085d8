"""Changes of many messages: which messages to change, and the outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from dejaq.errors import Code
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.sdk.admin.queries import filter_of
from dejaq.sdk.times import At

# How many ids one call carries, so that the progress is visible.
BULK_ROWS = 1_000
EXAMPLES_MAX = 100

# Called with the number of messages that are done so far, and the total number when that is known.
OnProgress = Callable[[int, int | None], None]


@dataclass(frozen=True, slots=True)
class Where:
    """Selects messages of an owner: `start <= time < end`, the lowest and the highest of `priorities`, and `headers`.

    A condition that is not given matches everything. The time of a leased message is the end of its lease.
    """

    start: At | None = None
    end: At | None = None
    priorities: tuple[int, int] | None = None
    headers: Mapping[str, str] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether it matches every message of the owner."""
        return self.start is None and self.end is None and self.priorities is None and not self.headers

    def filter(self, group: str) -> carrier.Filter:
        """The selection in the form of the protocol."""
        return filter_of(
            self.start, self.end, group=group, priorities=self.priorities, headers=dict(self.headers or {})
        )


@dataclass(slots=True)
class BulkResult:
    """How many messages were changed, how many were refused, and the first ids that were refused."""

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
        """Count the outcomes of some ids; a row that is not in `codes` succeeded."""
        self.done += len(ids) - len(codes)
        for row, code in codes.items():
            self.refused[code] = self.refused.get(code, 0) + 1
            if len(self.examples) < EXAMPLES_MAX:
                self.examples[ids[row]] = code
