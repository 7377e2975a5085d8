"""What a client does with topics: create, edit, describe, list and delete them."""

from __future__ import annotations

from typing import Any

from dejaq.domain.backoff import Backoff
from dejaq.domain.naming.topic_name import check_asked_topic
from dejaq.errors import DejaqError, Missing
from dejaq.protocol.v1 import overseer_pb2 as overseer
from dejaq.sdk.admin.cluster import TopicCopies, TopicInfo, TopicsPage
from dejaq.sdk.admin.topics import create_topic, settings_message
from dejaq.sdk.session.seeds import Seeds
from dejaq.sdk.session.settings import ClientSettings
from dejaq.sdk.times import Duration

# Topics that are read in one call.
TOPICS_PER_CALL = 500


class TopicCalls:
    """The calls of `Client` for topics."""

    # Set by the client.
    _seeds: Seeds
    _settings: ClientSettings

    async def create_topic(
        self,
        name: str,
        *,
        buckets: int | None = None,
        max_future: Duration | None = None,
        max_lease: Duration | None = None,
        max_body_bytes: int | None = None,
        durability: str | None = None,
        journal: bool | None = None,
        expires: bool | None = None,
        client_rate: int | None = None,
        compression: str | None = None,
        share_bodies: bool | None = None,
        encryption: str | None = None,
        kind: str | None = None,
        max_attempts: int | None = None,
        dead_letter: str | None = None,
        expiry_backoff: str | Backoff | None = None,
        dedup: Duration | None = None,
        max_dedup_ids: int | None = None,
        keep: Duration | None = None,
        keep_bytes: int | None = None,
        rollback_window: Duration | None = None,
        trim_read: bool | None = None,
        compact: bool | None = None,
    ) -> TopicInfo:
        """Create a topic; a setting that is not given has its default. A repeat with the same settings changes nothing.

        `max_future` is how far in the future a message may be due, `max_lease` the longest lease that a consumer may
        ask for, and `dedup` how long an own id stays taken after its creation, even when its message is gone. Each is
        seconds, a timedelta or a text such as `90s`, `24h` or `7d`, and is stored in milliseconds, as `dedup_ms`.

        With `kind="log"`, messages are kept for `keep` and up to `keep_bytes` in all, without limit by default. A batch
        can be rolled back within the `rollback_window`. `trim_read` removes what every group has read.
        `compact` removes all messages of a key but the latest; a message with an empty body removes its key.

        While a topic of this name is being deleted it waits, up to the client's deadline.
        """
        check_asked_topic(name)
        chosen = settings_message(
            buckets=buckets,
            max_future=max_future,
            max_lease=max_lease,
            max_body_bytes=max_body_bytes,
            durability=durability,
            journal=journal,
            expires=expires,
            client_rate=client_rate,
            compression=compression,
            share_bodies=share_bodies,
            encryption=encryption,
            kind=kind,
            max_attempts=max_attempts,
            dead_letter=dead_letter,
            expiry_backoff=expiry_backoff,
            dedup=dedup,
            max_dedup_ids=max_dedup_ids,
            keep=keep,
            keep_bytes=keep_bytes,
            rollback_window=rollback_window,
            trim_read=trim_read,
            compact=compact,
        )
        return await create_topic(self._seeds, self._settings, name, chosen)

    async def edit_topic(
        self,
        name: str,
        *,
        max_future: Duration | None = None,
        max_lease: Duration | None = None,
        max_body_bytes: int | None = None,
        durability: str | None = None,
        client_rate: int | None = None,
        compression: str | None = None,
        max_attempts: int | None = None,
        dead_letter: str | None = None,
        expiry_backoff: str | Backoff | None = None,
        max_dedup_ids: int | None = None,
        keep: Duration | None = None,
        keep_bytes: int | None = None,
        rollback_window: Duration | None = None,
        trim_read: bool | None = None,
        compact: bool | None = None,
        **fixed: Any,
    ) -> TopicInfo:
        """Change settings of a topic while it is in use; a setting that is not given keeps its value.

        The new settings apply to messages that are created or leased from now on; durations are as in `create_topic`.
        The other settings of `create_topic` are fixed: INVALID_SETTING for a value that is not the topic's.
        """
        check_asked_topic(name)
        chosen = settings_message(
            max_future=max_future,
            max_lease=max_lease,
            max_body_bytes=max_body_bytes,
            durability=durability,
            client_rate=client_rate,
            compression=compression,
            max_attempts=max_attempts,
            dead_letter=dead_letter,
            expiry_backoff=expiry_backoff,
            max_dedup_ids=max_dedup_ids,
            keep=keep,
            keep_bytes=keep_bytes,
            rollback_window=rollback_window,
            trim_read=trim_read,
            compact=compact,
            **fixed,
        )
        request = overseer.EditTopicRequest(name=name, settings=chosen)
        answer = await self._seeds.call("Overseer.EditTopic", request, overseer.TopicResponse, patience=self._settings)
        return TopicInfo.from_proto(answer.topic)

    async def rekey_topic(self, name: str, *, new_key: bool = False) -> str:
        """Protect the keys of an encrypted topic with the current key of the brokers' key provider; returns its name.

        With `new_key` the topic also gets another key for all new bodies. Bodies from before stay readable.
        """
        check_asked_topic(name)
        request = overseer.RekeyTopicRequest(name=name, new_key=new_key)
        answer = await self._seeds.call(
            "Overseer.RekeyTopic", request, overseer.RekeyTopicResponse, patience=self._settings
        )
        return str(answer.key)

    async def describe_topic(self, name: str) -> TopicInfo:
        """One topic with its settings and exact counts."""
        answer = await self._seeds.call(
            "Overseer.DescribeTopic",
            overseer.TopicRequest(name=name),
            overseer.TopicResponse,
            patience=self._settings,
        )
        return TopicInfo.from_proto(answer.topic)

    async def topics_page(self, *, after: str = "", count: int = 20, namespace: str = "") -> TopicsPage:
        """The next topics `after` a name that the caller may see, of the namespace `global`, `~` (own) or `~USER`."""
        request = overseer.ListTopicsRequest(after=after, count=count, namespace=namespace)
        answer = await self._seeds.call(
            "Overseer.ListTopics", request, overseer.ListTopicsResponse, patience=self._settings
        )
        return TopicsPage([TopicInfo.from_proto(topic) for topic in answer.topics], answer.more, answer.total)

    async def topics(self) -> list[TopicInfo]:
        """Every topic that the caller may see, by name; many are read in several calls."""
        topics: list[TopicInfo] = []
        while True:
            answer = await self._seeds.call(
                "Overseer.ListTopics",
                overseer.ListTopicsRequest(after=topics[-1].name if topics else "", count=TOPICS_PER_CALL),
                overseer.ListTopicsResponse,
                patience=self._settings,
            )
            topics += [TopicInfo.from_proto(topic) for topic in answer.topics]
            if not answer.more or not answer.topics:
                return topics

    async def copies(self, topic: str) -> TopicCopies:
        """Which brokers serve a topic, and which servers have copies of its messages."""
        answer = await self._seeds.call(
            "Overseer.Copies", overseer.TopicRequest(name=topic), overseer.CopiesResponse, patience=self._settings
        )
        return TopicCopies.from_proto(answer)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and its messages; returns when it accepts no more; the broker removes the data later."""
        request = overseer.TopicRequest(name=name)
        patience = self._seeds.patience(self._settings)
        again = False
        while True:
            transport = self._seeds.first()
            try:
                await transport.call("Overseer.DeleteTopic", request, overseer.TopicResponse, self._settings.timeout)
                return
            except Missing:
                if again:
                    # An earlier try may have been done, and the topic is gone, as asked.
                    return
                raise
            except DejaqError as error:
                await patience.after(error, transport)
                again = True
