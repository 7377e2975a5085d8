"""How many ids one step of the event loop handles, so that no step takes long on any machine and for any message."""

from __future__ import annotations

# A step takes about so much processor time; what is done with its rows comes behind that.
STEP_S = 0.0018
IDS_MIN, IDS_FIRST = 32, 128
# A step changes what is known of one id by one part in so many.
_PART = 4


class StepSize:
    """The number of ids, which follows what the steps before took."""

    def __init__(self, ids_max: int) -> None:
        self._ids_max = ids_max
        self._id_s = STEP_S / min(IDS_FIRST, ids_max)

    @property
    def ids(self) -> int:
        """How many ids the next step should have."""
        return max(min(IDS_MIN, self._ids_max), min(self._ids_max, int(STEP_S / self._id_s)))

    def took(self, count: int, seconds: float) -> None:
        """Take note of the processor time of a step with so many ids; a step with few says nothing of larger ones."""
        if count >= min(IDS_MIN, self._ids_max):
            self._id_s += (max(seconds, 1e-6) / count - self._id_s) / _PART
