"""What the caller may do with a topic, so that pages can disable what would be refused, and say why."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dejaq.sdk.client import Client
from dejaq.security.rights.operations import Operation

# What the pages ask about one topic.
ASKED = tuple(one for one in Operation if one not in (Operation.CREATE, Operation.OPERATE))
KEPT_SECONDS = 5.0
TOPICS_MAX = 1_000
# The cluster, where no single topic is meant.
CLUSTER = "*"


@dataclass(frozen=True, slots=True)
class RightShown:
    """Whether the caller may do something, and the broker's reason."""

    allowed: bool
    reason: str = ""


class CallerRights:
    """The broker's decisions for one caller, kept for a few seconds."""

    def __init__(self, client: Client, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._monotonic = monotonic
        self._known: OrderedDict[str, tuple[float, dict[str, RightShown]]] = OrderedDict()

    async def of(self, topic: str) -> Mapping[str, RightShown]:
        """The decision for each operation on a topic; for `*`, on the cluster."""
        known = self._known.get(topic)
        now = self._monotonic()
        if known is not None and known[0] > now:
            return known[1]
        asked = (Operation.OPERATE,) if topic == CLUSTER else ASKED
        first = await self._client.rights().check(asked[0], topic)
        if first.enforced:
            rest = await asyncio.gather(*(self._client.rights().check(one, topic) for one in asked[1:]))
            found = {
                str(one): RightShown(answer.allowed, answer.reason)
                for one, answer in zip(asked, (first, *rest), strict=True)
            }
        else:
            found = {str(one): RightShown(True) for one in asked}
        self._known[topic] = (now + KEPT_SECONDS, found)
        while len(self._known) > TOPICS_MAX:
            self._known.popitem(last=False)
        return found
