"""What the broker does when its health or one of its topics changes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from dejaq.broker.calls.snapshots import Snapshots
from dejaq.broker.cluster.cluster import Cluster
from dejaq.broker.delivery.roster import Rosters
from dejaq.broker.sessions.greeter import Greeter
from dejaq.domain.topic import Topic, TopicStage
from dejaq.errors import Code, DejaqError, Unavailable, error_of


class Reactions:
    """The listener of the doctor, the catalog and the cluster."""

    def __init__(
        self,
        *,
        greeter: Greeter,
        snapshots: Snapshots,
        rosters: Rosters,
        cluster: Cluster,
        publish_readiness: Callable[[], Awaitable[None]],
    ) -> None:
        self._greeter = greeter
        self._snapshots = snapshots
        self._rosters = rosters
        self._cluster = cluster
        self._publish_readiness = publish_readiness

    def cut_off(self, error: DejaqError) -> None:
        """End every session, so that clients continue at another broker."""
        self._greeter.end_all(error)

    def storage_failed(self, error: DejaqError) -> None:
        """End snapshots and sessions: they belong to the storage as it was opened, and clients begin again."""
        self._snapshots.close_all()
        self._greeter.end_all(error)

    async def storage_recovered(self) -> None:
        """Read the topics again."""
        await self._cluster.steward.begin()

    def clock_jumped(self) -> None:
        """Compare the clocks now, and look at what is due by the new time."""
        self._cluster.compare_soon()
        for roster in self._rosters:
            roster.notify_local(0)

    async def readiness_changed(self) -> None:
        """Publish through the health service whether clients should come here."""
        await self._publish_readiness()

    async def topic_closing(self, topic: Topic, error: DejaqError) -> None:
        """End the sessions on a topic at every broker, and wait for their end."""
        await self._leave(topic, error)
        await self._cluster.evacuate_others(topic)

    async def topic_dropped(self, topic: Topic) -> None:
        """Remove the topic's record from the cluster."""
        await self._cluster.steward.dropped(topic)

    async def topic_changed(self, topic: Topic) -> None:
        """End the sessions on a topic at this broker; its clients come back with the new settings."""
        if topic.state is TopicStage.DELETING:
            await self._leave(topic, error_of(Code.TOPIC_DELETING, f"topic {topic.name!r} is being deleted"))
            return
        # Some come back while others still end, so its consumers stay known.
        self._rosters.renew(topic)
        error = Unavailable(f"the settings of topic {topic.name!r} have changed; reconnect to continue")
        await self._greeter.evacuate(topic, error)

    async def _leave(self, topic: Topic, error: DejaqError) -> None:
        await self._greeter.evacuate(topic, error)
        self._rosters.forget(topic)
