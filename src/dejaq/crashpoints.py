"""Named points at which a test may kill the process, as a power cut or an operator would.

`DEJAQ_CRASH_AT="name:n"` kills this process with SIGKILL when it reaches the point `name` for the nth time.
Without the variable a point costs one comparison.
"""

from __future__ import annotations

import os
import signal

_POINT, _, _HIT = os.environ.get("DEJAQ_CRASH_AT", "").partition(":")
_left = int(_HIT) if _HIT.isdigit() else 1


def crash_at(name: str) -> None:
    """Kill this process if the environment named this point and this is the hit it named."""
    if name != _POINT or not name:
        return
    global _left
    _left -= 1
    if _left <= 0:
        os.kill(os.getpid(), signal.SIGKILL)
