"""The calls about dead letters: moving them back to a topic, and removing them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dejaq.broker.metrics import CANCELLED, REDRIVEN, REFUSED, MetricSpec
from dejaq.broker.sessions.admission import check_count, refused_ids
from dejaq.broker.sessions.broker_context import BrokerContext
from dejaq.domain.batch import Outcomes
from dejaq.domain.changes import Cancel, Redrive
from dejaq.domain.context import CallContext
from dejaq.domain.topic import Topic
from dejaq.errors import Code, DejaqError, InvalidArgument, error_of
from dejaq.protocol.columns import write_outcomes
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1 import errors_pb2
from dejaq.storage.base import apply_one


class DeadLetterCalls:
    """Answers `Carrier.Redrive` and `Carrier.Purge`."""

    def __init__(self, broker: BrokerContext) -> None:
        self._storage = broker.storage
        self._clock = broker.clock
        self._catalog = broker.catalog
        self._rosters = broker.rosters
        self._metrics = broker.metrics

    async def redrive(self, context: CallContext, request: carrier.RedriveRequest) -> errors_pb2.Outcomes:
        """Move dead letters to a topic, by id."""
        topic, target = self._catalog.live(request.topic), self._target(request)
        if topic.settings.encryption is not target.settings.encryption:
            # Sealed bodies could not be read there, and others would be stored in plain form.
            raise InvalidArgument(
                f"{topic.name!r} and {target.name!r} must have one encryption; they have {topic.settings.encryption} "
                f"and {target.settings.encryption}"
            )
        ids = list(request.ids)
        check_count(len(ids))
        refused = refused_ids(ids)
        rows = [row for row in range(len(ids)) if row not in refused]
        outcomes = Outcomes(len(ids), refused)
        if rows:
            done = await apply_one(
                self._storage, Redrive(topic, target, [ids[row] for row in rows]), self._clock.now_ms(), context
            )
            outcomes.codes.update({rows[place]: code for place, code in done.codes.items()})
        self._rosters.of(target).notify(self._clock.now_ms())
        return self._answer(REDRIVEN, target, outcomes)

    def _target(self, request: carrier.RedriveRequest) -> Topic:
        try:
            return self._catalog.live(request.target)
        except DejaqError as error:
            raise error_of(
                error.code,
                f"topic {request.target!r} takes no messages, so the dead letters stay in {request.topic!r}; "
                "create it again, or name another target",
            ) from None

    async def purge(self, context: CallContext, request: carrier.PurgeRequest) -> errors_pb2.Outcomes:
        """Remove messages by id, of any owner."""
        topic = self._catalog.live(request.topic)
        ids = list(request.ids)
        check_count(len(ids))
        outcomes = Outcomes(len(ids), refused_ids(ids))
        for owner, rows in (await self._owners(topic, ids, outcomes)).items():
            done = await apply_one(
                self._storage, Cancel(topic, owner, [ids[row] for row in rows]), self._clock.now_ms(), context
            )
            outcomes.codes.update({rows[place]: code for place, code in done.codes.items()})
        return self._answer(CANCELLED, topic, outcomes)

    async def _owners(self, topic: Topic, ids: Sequence[str], outcomes: Outcomes) -> dict[str, list[int]]:
        """The rows by the owner of their message; an owner never changes. Rows without a message are refused."""
        rows = [row for row in range(len(ids)) if row not in outcomes.codes]
        owners: dict[str, list[int]] = {}
        found = await self._storage.get(topic, [ids[row] for row in rows], self._clock.now_ms())
        for row, message in zip(rows, found, strict=True):
            if message is None:
                outcomes.codes[row] = Code.NOT_FOUND
            else:
                owners.setdefault(message.producer_group, []).append(row)
        return owners

    def _answer(self, metric: MetricSpec, topic: Topic, outcomes: Outcomes) -> errors_pb2.Outcomes:
        self._metrics.add(metric, outcomes.count - len(outcomes.codes), topic.name)
        for code, count in Counter(outcomes.codes.values()).items():
            self._metrics.add(REFUSED, count, code.name)
        proto = errors_pb2.Outcomes()
        write_outcomes(proto, outcomes)
        return proto
