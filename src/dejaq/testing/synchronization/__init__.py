"""The requirements on every synchronization: run each of `CHECKS` on a stage of yours.

    for check in CHECKS:
        await check.run(stage)

A stage creates members of clusters and disconnects them. A check raises AssertionError when the sentence in
`check.about` is not true.
"""

from __future__ import annotations

from dejaq.testing.synchronization import membership, records, watching
from dejaq.testing.synchronization.stage import Stage, StageMember, SynchronizationCheck, checks_of

CHECKS: tuple[SynchronizationCheck, ...] = tuple(
    check for module in (records, watching, membership) for check in checks_of(module)
)

__all__ = ["CHECKS", "Stage", "StageMember", "SynchronizationCheck"]
