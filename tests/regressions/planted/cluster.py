"""Planted bugs of the cluster."""

from __future__ import annotations

from typing import Any

from tests.regressions.bugs import Bug

BODIES = "tests/integration/storage/test_sharded_bodies.py"
OUTAGE = "tests/integration/sdk/test_outage.py"
RACES = "tests/integration/storage/test_postgres_races.py"
TRIAL = "tests/acceptance/test_cluster_command.py"
CLIENTS = "tests/integration/cluster/test_clients.py"
FULL = "tests/integration/cluster/test_etcd_full.py"
RECALL = "tests/unit/broker/test_recall.py"
TOPICS = "tests/integration/cluster/test_topics.py"


def drop_only_what_was_not_marked() -> None:
    """C1: the deletion does nothing when the watch was the first to see the state DELETING."""
    from dejaq.broker.catalog import Catalog
    from dejaq.domain.context import CallContext
    from dejaq.domain.topic import Topic, TopicStage

    delete = Catalog.delete

    async def with_defect(self: Catalog, context: CallContext, name: str) -> Topic:
        topic = self.find(name)
        return topic if topic.state is TopicStage.DELETING else await delete(self, context, name)

    Catalog.delete = with_defect  # type: ignore[method-assign]


def give_a_drop_up() -> None:
    """C2: the deletion of a topic that failed once is not tried again."""
    from dejaq.broker.catalog import Catalog

    try_to_drop = Catalog._try_to_drop

    async def with_defect(self: Catalog, *arguments: Any) -> bool:
        await try_to_drop(self, *arguments)
        return True

    Catalog._try_to_drop = with_defect  # type: ignore[method-assign]


def drop_schedules_afterwards() -> None:
    """C2: the schedules of a deleted cron topic stay."""
    from dejaq.broker.catalog import Catalog

    async def none(self: Catalog, topic: Any) -> list[Any]:
        return []

    Catalog._schedules_to_drop = none  # type: ignore[method-assign]


def forget_leftover_claims() -> None:
    """C5: the broker forgets a claim that it failed to remove."""
    from dejaq.synchronization.claims import Claims

    async def nothing(self: Claims, *names: str) -> None:
        return None

    Claims.tidy = nothing  # type: ignore[method-assign]


def remove_any_claim() -> None:
    """D8: a broker removes a claim, even one that another broker holds now."""
    from dejaq.synchronization.claims import Claims

    async def release(self: Claims, name: str) -> None:
        self._held.pop(name, None)
        await self._synchronization.remove(self._prefix + name)

    Claims.release = release  # type: ignore[method-assign]


def bring_every_bound_record_back() -> None:
    """D8: a member whose membership expired writes its records again, even those that other members hold now."""
    from dejaq.synchronization.etcd.service import EtcdSynchronization

    put = EtcdSynchronization.put

    async def with_defect(self: EtcdSynchronization, key: str, value: bytes, **keys: Any) -> Any:
        return await put(self, key, value, **keys | {"comes_back": True})

    EtcdSynchronization.put = with_defect  # type: ignore[method-assign]


def keep_seats_when_etcd_is_full() -> None:
    """C3: while etcd has no space, brokers trust the list of consumers that a broker published last."""
    from dejaq.synchronization.etcd.service import EtcdSynchronization

    remove = EtcdSynchronization.remove

    async def with_defect(self: EtcdSynchronization, key: str, **keys: Any) -> bool:
        return not key.startswith("seats/") and await remove(self, key, **keys)

    EtcdSynchronization.remove = with_defect  # type: ignore[method-assign]


def take_a_full_etcd_for_a_silent_one() -> None:
    """C3: the error that etcd has no space is treated as a temporary error."""
    from dejaq.synchronization.etcd import wire

    wire._NO_SPACE = "something else"


def publish_without_news() -> None:
    """C4: every broker writes its record every second, even without a change."""
    from dejaq.broker.cluster.member import Member

    def with_defect(self: Member, other: Member) -> bool:
        return True

    Member.differs = with_defect  # type: ignore[method-assign]


def wait_for_a_recall_without_bound() -> None:
    """D4: the waits before the client's answer have no limit."""
    from dejaq.broker.delivery import consumer

    consumer.RECALL_SECONDS = 3_600


def wake_nobody_when_leases_are_recalled() -> None:
    """D4: a call that waits for the push of a lease never learns that the lease was recalled."""
    import asyncio

    from dejaq.broker.delivery.leaser import Leaser

    class Silent(asyncio.Event):
        def set(self) -> None:
            return None

    init = Leaser.__init__

    def with_defect(self: Leaser, **keys: Any) -> None:
        init(self, **keys)
        self._pushed = Silent()

    Leaser.__init__ = with_defect  # type: ignore[method-assign]
    wait_for_a_recall_without_bound()


def keep_credit_of_other_brokers() -> None:
    """D2: a transaction frees only the credit of consumers at its own broker."""
    from dejaq.broker.cluster.directory import BrokerDirectory

    def with_defect(self: BrokerDirectory, *arguments: object) -> None:
        return None

    BrokerDirectory.settled = with_defect  # type: ignore[method-assign]


def serve_peers_to_clients() -> None:
    """D16: the calls between brokers are served on the port for clients."""
    from dejaq.broker import server
    from dejaq.broker.central import Central

    init = Central.__init__
    server._SERVICES = (*server._SERVICES, *server._PEER_SERVICES[:1])

    def with_defect(self: Central, **keys: Any) -> None:
        init(self, **keys)
        self.services.unary.update(self._peer_calls.unary)

    Central.__init__ = with_defect  # type: ignore[method-assign]


def end_a_move_at_the_first_failure() -> None:
    """C6: a move of buckets stops when its connection breaks."""
    from dejaq.broker.shards import mover

    mover.FAILURES_MAX = 0


def answer_with_the_reason_of_the_end() -> None:
    """C7: a request sent before the session ended is answered with the reason for that end."""
    from dejaq.errors import Indefinite
    from dejaq.sdk.session.connection import Connection

    request = Connection.request

    async def with_defect(self: Connection, *arguments: Any) -> Any:
        try:
            return await request(self, *arguments)
        except Indefinite:
            raise self._closed or AssertionError from None

    Connection.request = with_defect  # type: ignore[method-assign]


def let_frozen_transactions_be() -> None:
    """C8: nothing ends the transaction of a frozen broker, or a wait for its locks."""
    from dejaq.storage.postgres.connection.database import PostgresDatabase

    connect = PostgresDatabase.connect

    async def with_defect(self: PostgresDatabase, **settings: str) -> Any:
        return await connect(self, **{"idle_in_transaction_session_timeout": "0", "lock_timeout": "0"} | settings)

    PostgresDatabase.connect = with_defect  # type: ignore[method-assign]


def accept_any_user_of_the_storage() -> None:
    """U6: no broker checks whether another cluster uses the storage."""
    from dejaq.broker.cluster.users import StorageUsers

    async def with_defect(self: StorageUsers) -> None:
        return None

    StorageUsers.check = with_defect  # type: ignore[method-assign]


def start_with_an_empty_etcd_each_time() -> None:
    """U10: a trial cluster forgets its shards and its ports."""
    from dejaq.trial import cluster as trial

    trial._kept_ports = lambda directory: {}


def take_any_directory() -> None:
    """U3: a trial cluster is created and erased in any directory, even one with other files."""
    import shutil

    from dejaq.trial import cluster as trial

    def erase(directory: Any) -> list[str]:
        shutil.rmtree(directory)
        return []

    trial.check_own = lambda directory: None
    trial.remove = erase


def start_where_postgresql_may_not_enter() -> None:
    """U25: no check finds out whether PostgreSQL's user may enter the directory."""
    from dejaq.trial import cluster as trial

    trial._check_entry = lambda directory: None


def move_without_a_claim() -> None:
    """C6: a broker continues a move although its claim has expired."""
    from dejaq.synchronization.claims import Claims

    async def with_defect(self: Claims, name: str) -> bool:
        return True

    Claims.holds = with_defect  # type: ignore[method-assign]


def wait_for_sessions_without_limit() -> None:
    """C10: the deletion of a topic waits until every request on it is finished."""
    from dejaq.broker.sessions import greeter

    async def with_defect(session: greeter.Session, deadline: float) -> bool:
        await session.finished()
        return True

    greeter._finished = with_defect


BUGS: dict[str, Bug] = {
    "C1": Bug(
        plant=drop_only_what_was_not_marked,
        test=f"{TOPICS}::test_a_topic_is_deleted_when_the_watch_reports_the_deletion_first",
    ),
    "C2-etcd": Bug(
        plant=give_a_drop_up, test=f"{TOPICS}::test_a_topic_is_dropped_though_etcd_was_unavailable_meanwhile"
    ),
    "C2-postgresql": Bug(
        plant=give_a_drop_up, test=f"{TOPICS}::test_a_topic_is_dropped_though_postgresql_was_unavailable_meanwhile"
    ),
    "C2-schedules": Bug(
        plant=drop_schedules_afterwards,
        test=f"{TOPICS}::test_a_cron_topic_that_is_created_again_at_once_has_its_schedules",
    ),
    "C3-seats": Bug(
        plant=keep_seats_when_etcd_is_full,
        test=f"{FULL}::test_messages_for_a_departed_consumer_are_delivered_while_etcd_is_full",
    ),
    "C3-code": Bug(
        plant=take_a_full_etcd_for_a_silent_one,
        test=f"{FULL}::test_a_full_etcd_has_its_own_error_code_and_brokers_recover_when_space_is_free",
    ),
    "C3-start": Bug(
        plant=take_a_full_etcd_for_a_silent_one,
        test=f"{FULL}::test_a_broker_that_starts_while_etcd_is_full_reports_it_at_once",
    ),
    "C4": Bug(plant=publish_without_news, test=f"{FULL}::test_an_idle_cluster_hardly_writes_to_etcd"),
    "C5": Bug(
        plant=forget_leftover_claims,
        test=f"{TOPICS}::test_a_claim_that_could_not_be_removed_in_an_outage_is_removed_after_it",
    ),
    "C6": Bug(
        plant=end_a_move_at_the_first_failure, test=f"{BODIES}::test_a_move_whose_connection_is_terminated_continues"
    ),
    "C6-frozen": Bug(
        plant=move_without_a_claim,
        test=f"{BODIES}::test_a_mover_that_was_frozen_does_not_undo_a_move_that_a_broker_completed",
    ),
    "C7": Bug(
        plant=answer_with_the_reason_of_the_end,
        test=f"{OUTAGE}::test_a_delete_whose_consumer_is_taken_over_before_the_answer_is_indefinite",
    ),
    "C8-idle": Bug(
        plant=let_frozen_transactions_be,
        test=f"{RACES}::test_a_broker_that_freezes_with_a_lock_delays_others_for_its_idle_time_only",
    ),
    "C8-lock": Bug(
        plant=let_frozen_transactions_be,
        test=f"{RACES}::test_a_lock_that_lasts_longer_than_the_time_limit_is_no_failure_of_the_store",
    ),
    "U3": Bug(plant=take_any_directory, test=f"{TRIAL}::test_a_directory_with_other_files_is_refused_and_left_alone"),
    "U10": Bug(
        plant=start_with_an_empty_etcd_each_time,
        test=f"{TRIAL}::test_a_trial_cluster_to_which_a_shard_was_added_starts_again",
    ),
    "U25": Bug(
        plant=start_where_postgresql_may_not_enter,
        test=f"{TRIAL}::test_a_directory_that_postgresql_may_not_enter_is_named",
    ),
    "U6": Bug(
        plant=accept_any_user_of_the_storage,
        test="tests/integration/cluster/test_brokers.py::test_a_broker_without_synchronization_is_refused_on_the_storage_of_a_cluster",
    ),
    "D2": Bug(
        plant=keep_credit_of_other_brokers,
        test=f"{CLIENTS}::test_a_transaction_at_another_broker_frees_the_credit_of_the_consumer",
    ),
    "D16": Bug(plant=serve_peers_to_clients, test=f"{CLIENTS}::test_a_client_cannot_make_the_calls_of_brokers[LetGo]"),
    "D4-bound": Bug(
        plant=wait_for_a_recall_without_bound,
        test=f"{RECALL}::test_a_consumer_that_stops_reading_does_not_block_an_owner",
    ),
    "C10": Bug(
        plant=wait_for_sessions_without_limit,
        test="tests/unit/broker/test_greeter.py::test_a_client_that_never_ends_does_not_delay_the_deletion_of_its_topic",
    ),
    "D4-wake": Bug(
        plant=wake_nobody_when_leases_are_recalled,
        test=f"{RECALL}::test_a_consumer_that_stops_reading_and_disconnects_does_not_block_an_owner",
    ),
    "D8-removal": Bug(plant=remove_any_claim, test=f"{TOPICS}::test_a_claim_of_another_broker_is_never_removed"),
    "D8-return": Bug(
        plant=bring_every_bound_record_back,
        test="tests/conformance/test_synchronization.py::test_etcd[etcd-membership.a_member_comes_back_without_what_another_has_taken]",
    ),
}
