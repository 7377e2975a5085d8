"""Dead letters: the topic they go to, made when it is needed, and the ways out of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from dejaq.broker.carrier.admission import check_count, refused_ids
from dejaq.broker.carrier.roster import Rosters
from dejaq.broker.metrics import CANCELLED, REDRIVEN, REFUSED, Metrics, MetricSpec
from dejaq.broker.overseer.catalog import Catalog
from dejaq.domain.batch import Outcomes
from dejaq.domain.topic import Topic, TopicSettings, TopicState
from dejaq.errors import Code, DejaqError, error_of
from dejaq.protocol.columns import write_outcomes
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1 import errors_pb2
from dejaq.storage.base import Storage
from dejaq.timekeeper.clock import Clock

# How long to leave a topic alone that is being deleted, before it is made anew.
RETRY_SECONDS = 0.05


class Graves:
    """Knows the dead-letter topic of every topic; answers `Carrier.Redrive` and `Carrier.Purge`."""

    def __init__(
        self,
        *,
        storage: Storage,
        clock: Clock,
        catalog: Catalog,
        create_topic: Callable[[str, TopicSettings], Awaitable[tuple[Topic, bool]]],
        rosters: Rosters,
        metrics: Metrics,
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._catalog = catalog
        self._create_topic = create_topic
        self._rosters = rosters
        self._metrics = metrics

    async def topic_for(self, topic: Topic) -> Topic:
        """The topic that the dead letters of `topic` go to: the one of that name, whatever it is, or a new one.

        One that is being deleted is waited for and made anew.
        """
        name = topic.dead_letter_name
        while True:
            there = self._catalog.named(name)
            if there is not None and there.state is not TopicState.DELETING:
                return there
            try:
                return await self._make(topic, name)
            except DejaqError as error:
                if error.code is Code.TOPIC_DELETING:
                    await self._clock.sleep(RETRY_SECONDS)
                elif error.code is not Code.TOPIC_EXISTS:
                    raise

    async def _make(self, topic: Topic, name: str) -> Topic:
        settings = topic.settings
        plain = TopicSettings(
            buckets=settings.buckets,
            max_body_bytes=settings.max_body_bytes,
            durability=settings.durability,
            journal=settings.journal,
        )
        made, _ = await self._create_topic(name, plain)
        return made

    def came(self, grave: Topic) -> None:
        """Messages have come into a dead-letter topic: who consumes it is told."""
        self._rosters.of(grave).nudge(self._clock.now_ms())

    async def redrive(self, request: carrier.RedriveRequest) -> errors_pb2.Outcomes:
        """Move dead letters to a topic, by id."""
        topic, target = self._catalog.live(request.topic), self._target(request)
        ids = list(request.ids)
        check_count(len(ids))
        refused = refused_ids(ids)
        rows = [row for row in range(len(ids)) if row not in refused]
        outcomes = Outcomes(len(ids), refused)
        if rows:
            done = await self._storage.redrive(topic, target, [ids[row] for row in rows], self._clock.now_ms())
            outcomes.codes.update({rows[place]: code for place, code in done.codes.items()})
        self._rosters.of(target).nudge(self._clock.now_ms())
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

    async def purge(self, request: carrier.PurgeRequest) -> errors_pb2.Outcomes:
        """Remove messages for good, whoever owns them, by id."""
        topic = self._catalog.live(request.topic)
        ids = list(request.ids)
        check_count(len(ids))
        outcomes = Outcomes(len(ids), refused_ids(ids))
        for owner, rows in (await self._owners(topic, ids, outcomes)).items():
            done = await self._storage.cancel(topic, owner, [ids[row] for row in rows], self._clock.now_ms())
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
