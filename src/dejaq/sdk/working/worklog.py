"""The log of a worker: one record per event, as `event key=value` for people and as fields for programs.

The fields are in the record's attribute `dejaq`. Bodies and headers are never logged.
"""

from __future__ import annotations

import logging
from typing import Any

from dejaq.sdk.consuming.lease import Lease

log = logging.getLogger("dejaq.worker")


class WorkLog:
    """The log of one worker."""

    def __init__(self, *, topic: str, worker: str) -> None:
        self._who = {"topic": topic, "worker": worker}

    def tell(self, level: int, event: str, *, error: BaseException | None = None, **fields: Any) -> None:
        """Log one event of the worker itself."""
        if not log.isEnabledFor(level):
            return
        told = {"event": event, **self._who, **fields}
        if error is not None:
            told["error"] = f"{type(error).__name__}: {error}"
        text = " ".join(f"{name}={_shown(value)}" for name, value in told.items() if name != "event")
        log.log(level, "%s %s", event, text, extra={"dejaq": told}, exc_info=error)

    def told_of(
        self, lease: Lease, level: int, event: str, *, error: BaseException | None = None, **fields: Any
    ) -> None:
        """Log one event of a message."""
        if log.isEnabledFor(level):
            self.tell(level, event, error=error, id=lease.id, attempts=lease.attempts, **fields)


def _shown(value: Any) -> str:
    text = f"{value:.1f}" if isinstance(value, float) else str(value)
    return repr(text) if " " in text or not text.isprintable() else text
