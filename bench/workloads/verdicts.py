"""What a goal of a workload came to: met, or missed by how much. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkloadVerdict:
    """One goal of one workload. `met` is None when it was not measured; `missed_by` is empty unless it is missed."""

    workload: str
    goal: str
    measured: str
    met: bool | None
    missed_by: str = ""

    @property
    def outcome(self) -> str:
        """As the page shows it."""
        if self.met is None:
            return "-"
        return "met" if self.met else f"**missed by {self.missed_by}**"


def at_least(workload: str, goal: str, value: float | None, bound: float, unit: str = "") -> WorkloadVerdict:
    """A rate or a ratio that must reach a bound; a miss is the missing share of the bound."""
    if value is None:
        return WorkloadVerdict(workload, goal, "not measured", None)
    missing = 1 - value / bound
    return WorkloadVerdict(workload, goal, f"{_number(value)}{unit}", value >= bound, f"{missing:.0%} of the goal")


def at_most(workload: str, goal: str, value: float | None, bound: float, unit: str, note: str = "") -> WorkloadVerdict:
    """A time or a size that must not exceed a bound; a miss is the difference, and the factor where it is large."""
    if value is None:
        return WorkloadVerdict(workload, goal, "not measured", None)
    missed_by = f"{_number(value - bound)}{unit}"
    if bound > 0 and value >= 2 * bound:
        missed_by += f" ({value / bound:.1f} x the goal)"
    return WorkloadVerdict(workload, goal, f"{_number(value)}{unit}{note}", value <= bound, missed_by)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}"


def unmeasured(workload: str, goal: str) -> WorkloadVerdict:
    """A goal without a figure."""
    return WorkloadVerdict(workload, goal, "not measured", None)
