"""What every synchronization must do: run each of `CHECKS` on a stage of yours.

    for check in CHECKS:
        await check.run(stage)

A stage makes members of clusters and cuts them off. A check raises AssertionError when the sentence in `check.about`
does not hold.
"""

from __future__ import annotations

from dejaq.testing.synchronization import membership, records, watching
from dejaq.testing.synchronization.stage import Check, Member, Stage, checks_of

CHECKS: tuple[Check, ...] = tuple(check for module in (records, watching, membership) for check in checks_of(module))

__all__ = ["CHECKS", "Check", "Member", "Stage"]
