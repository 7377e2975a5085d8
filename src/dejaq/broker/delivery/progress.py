"""Progress reports: the last one of each message, in the memory of the broker that its consumer is connected to."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from dejaq import limits
from dejaq.broker.delivery.roster import Rosters
from dejaq.domain.message import Message, Status
from dejaq.domain.topic import Topic


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """What the holder of a lease said last."""

    lease_id: int
    text: str


class ProgressReports:
    """Keeps a limited number of reports; when there are more, the oldest are dropped."""

    def __init__(self, rosters: Rosters) -> None:
        self._rosters = rosters
        self._reports: OrderedDict[tuple[int, str], ProgressReport] = OrderedDict()

    def __len__(self) -> int:
        return len(self._reports)

    def put(self, topic: int, message_id: str, report: ProgressReport) -> None:
        """Keep the report of a message, in place of an earlier one."""
        self._reports[topic, message_id] = report
        self._reports.move_to_end((topic, message_id))
        if len(self._reports) > limits.PROGRESS_COUNT_MAX:
            self._reports.popitem(last=False)

    def here(self, topic: int, message_id: str, lease_id: int) -> str:
        """The report that was made here under this lease; empty where there is none."""
        report = self._reports.get((topic, message_id))
        return report.text if report is not None and report.lease_id == lease_id else ""

    async def added(self, topic: Topic, messages: Sequence[Message], now: int) -> list[Message]:
        """The messages, those that a consumer works on with its last report, wherever it is connected."""
        texts: dict[str, str] = {}
        roster = self._rosters.of(topic)
        elsewhere: list[tuple[str, Message]] = []
        for message in messages:
            if message.status(now) is not Status.PROCESSING:
                continue
            broker = roster.broker_of(message.lock_consumer)
            if broker is None:
                texts[message.id] = self.here(topic.number, message.id, message.version)
            else:
                elsewhere.append((broker, message))
        for broker, group in groupby(sorted(elsewhere, key=lambda one: one[0]), key=lambda one: one[0]):
            asked = [message for _, message in group]
            found = await self._rosters.peers.progress(broker, topic, asked)
            texts.update(zip((message.id for message in asked), found, strict=True))
        return [replace(one, progress=text) if (text := texts.get(one.id)) else one for one in messages]
