"""The size of each fault test: the CI size, the full size with DEJAQ_CHAOS=full, or a size set for one test."""

from __future__ import annotations

import os
import random

FULL = os.environ.get("DEJAQ_CHAOS") == "full"


def size(name: str, *, ci: int, full: int) -> int:
    """The size of a test; `DEJAQ_CHAOS_<NAME>` overrides the CI size and the full size."""
    return int(os.environ.get(f"DEJAQ_CHAOS_{name}", full if FULL else ci))


def new_seed() -> int:
    """A random seed, printed so that a failure shows it; `DEJAQ_CHAOS_SEED` replays one."""
    seed = int(os.environ.get("DEJAQ_CHAOS_SEED", random.SystemRandom().randrange(2**31)))
    print(f"replay with DEJAQ_CHAOS_SEED={seed}")
    return seed
