"""How many buckets each consumer has: in proportion to the weights, as whole numbers, and stable after a change."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import nsmallest


def shares_of(weights: Mapping[str, int], seeds: Mapping[str, int], buckets: int) -> dict[str, int]:
    """The number of buckets of each name; the sum is `buckets`, and each differs from the exact share by less than one.

    Every name gets the whole part of its share. The buckets that are left go to the names with the smallest seeds, and
    rather to those that miss more, so that few of them change when a name comes or goes.
    """
    if not weights:
        return {}
    if len(set(weights.values())) == 1:
        # All miss equally much.
        whole, left = divmod(buckets, len(weights))
        shares = dict.fromkeys(weights, whole)
        for name in nsmallest(left, weights, key=seeds.__getitem__):
            shares[name] += 1
        return shares
    total = sum(weights.values())
    shares = {name: buckets * weight // total for name, weight in weights.items()}
    left = buckets - sum(shares.values())
    if left:
        missing = {name: rest for name, weight in weights.items() if (rest := buckets * weight % total)}
        for name in nsmallest(left, missing, key=lambda name: ((seeds[name] << 64) // missing[name], name)):
            shares[name] += 1
    return shares
