"""The requirements on the logs of a storage: run each of `LOG_CHECKS` against a factory of yours.

It is used as `dejaq.testing.conformance.CHECKS` is, with a factory of a storage that `KeepsLogs`.
"""

from __future__ import annotations

from dejaq.testing.conformance.check import Check, checks_of
from dejaq.testing.conformance.logs import appending, grouping, preparing, reading, retaining, surviving, transacting

LOG_CHECKS: tuple[Check, ...] = tuple(
    check for module in (appending, reading, grouping, retaining, transacting, preparing) for check in checks_of(module)
) + tuple(checks_of(surviving, restarts=True))

__all__ = ["LOG_CHECKS", "Check"]
