"""Which rows of a run over several buckets belong to some of the buckets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# So many sets of buckets are remembered; there are more while consumers come and go.
_SETS_MAX = 16


class RowBuckets:
    """The bucket of each row of a run."""

    __slots__ = ("_buckets", "_masks")

    def __init__(self, buckets: Sequence[int]) -> None:
        self._buckets = np.array(buckets, dtype=np.uint16)
        self._masks: dict[tuple[int, ...], int] = {}

    def mask_of(self, chosen: tuple[int, ...]) -> int:
        """The rows of these buckets."""
        mask = self._masks.get(chosen)
        if mask is None:
            if len(self._masks) >= _SETS_MAX:
                self._masks.clear()
            among = np.isin(self._buckets, np.array(chosen, dtype=np.uint16))
            mask = int.from_bytes(np.packbits(among, bitorder="little").tobytes(), "little")
            self._masks[chosen] = mask
        return mask
