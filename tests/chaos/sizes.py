"""How large each fault test is: the CI size, or the full one when DEJAQ_CHAOS=full, or a size of its own."""

from __future__ import annotations

import os
import random

FULL = os.environ.get("DEJAQ_CHAOS") == "full"


def size(name: str, *, ci: int, full: int) -> int:
    """The size of a test; `DEJAQ_CHAOS_<NAME>` overrides both."""
    return int(os.environ.get(f"DEJAQ_CHAOS_{name}", full if FULL else ci))


def new_seed() -> int:
    """A seed, printed so that a failure shows it; `DEJAQ_CHAOS_SEED` replays one."""
    seed = int(os.environ.get("DEJAQ_CHAOS_SEED", random.SystemRandom().randrange(2**31)))
    print(f"replay with DEJAQ_CHAOS_SEED={seed}")
    return seed
