"""Which rows of a run over several buckets belong to some of the buckets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# So many sets of buckets are remembered; there are more while consumers come and go.
_SETS_MAX = 16
# The rows of so short a run are compared one by one.
_FEW_ROWS = 16


class RowBuckets:
    """The bucket of each row of a run."""

    __slots__ = ("_buckets", "_few", "_masks")

    def __init__(self, buckets: Sequence[int]) -> None:
        few = len(buckets) <= _FEW_ROWS
        self._few = buckets if few else None
        self._buckets = np.array(() if few else buckets, dtype=np.uint16)
        self._masks: dict[tuple[int, ...], int] = {}

    def mask_of(self, chosen: tuple[int, ...]) -> int:
        """The rows of these buckets."""
        mask = self._masks.get(chosen)
        if mask is None:
            if len(self._masks) >= _SETS_MAX:
                self._masks.clear()
            mask = self._masks[chosen] = self._compute(chosen)
        return mask

    def _compute(self, chosen: tuple[int, ...]) -> int:
        if self._few is not None:
            return sum([1 << row for row, bucket in enumerate(self._few) if bucket in chosen])
        among = np.isin(self._buckets, np.array(chosen, dtype=np.uint16))
        return int.from_bytes(np.packbits(among, bitorder="little").tobytes(), "little")
