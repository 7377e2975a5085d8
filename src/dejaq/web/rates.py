"""How many requests one client address may send: a bucket of tokens for each."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

# Addresses that are remembered; the one that was quiet for the longest time is forgotten, with a full bucket.
ADDRESSES_MAX = 10_000


@dataclass(slots=True)
class _TokenBucket:
    tokens: float
    at: float


class RateLimiter:
    """Takes one token per request; `rate` tokens per second come back, up to `burst`."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._buckets: OrderedDict[str, _TokenBucket] = OrderedDict()

    def wait_seconds(self, address: str, now: float) -> float:
        """0 when the request may be served; otherwise the time after which one may."""
        if self._rate <= 0:
            return 0.0
        bucket = self._buckets.get(address)
        if bucket is None:
            bucket = self._buckets[address] = _TokenBucket(self._burst, now)
            if len(self._buckets) > ADDRESSES_MAX:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(address)
        bucket.tokens = min(self._burst, bucket.tokens + (now - bucket.at) * self._rate)
        bucket.at = now
        if bucket.tokens >= 1:
            bucket.tokens -= 1
            return 0.0
        return (1 - bucket.tokens) / self._rate
