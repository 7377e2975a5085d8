import json
from typing import Any

from dejaq.broker.cluster.member import Member, Process
from dejaq.broker.cluster.selector import recommend, relief
from dejaq.domain.context import Endpoint


def member(name: str, sessions: int = 0, **keys: Any) -> Member:
    return Member(id=name, address=f"{name}:1", sessions=sessions, **keys)


def ids(members: list[Member], own: str) -> list[str]:
    return [one.id for one in recommend(members, own=own, load=lambda one: one.sessions)]


def test_the_least_loaded_broker_comes_first_unless_a_move_would_not_balance_the_load() -> None:
    assert ids([member("a", 5), member("b", 1)], own="a") == ["b", "a"]
    assert ids([member("a", 2), member("b", 1)], own="a") == ["a", "b"]


def test_a_broker_that_drains_or_does_not_serve_is_not_recommended() -> None:
    assert ids([member("a", draining=True), member("b", 9), member("c", ready=False)], own="a") == ["b"]
    assert ids([member("a", draining=True)], own="a") == []


def test_a_client_is_sent_to_addresses_of_its_own_endpoint() -> None:
    both = Member(id="a", address="h:1", grpc_address="h:2")
    assert [both.address_at(endpoint) for endpoint in (Endpoint.WEBSOCKET, Endpoint.GRPC)] == ["h:1", "h:2"]
    assert both.address_at(Endpoint.LOCAL) == ""
    assert Member(id="b", address="h:1").address_at(Endpoint.GRPC) == ""


def test_the_address_of_an_older_release_is_one_of_grpc() -> None:
    older = Member.decode(b'{"id": "a", "address": "h:1", "peer_address": "h:2"}', token=1)
    assert (older.address, older.grpc_address, older.peer_address) == ("", "h:1", "h:2")
    assert older.shown_address == "h:1"
    newer = json.loads(Member(id="a", address="h:3", grpc_address="h:1").encode())
    assert (newer["address"], newer["websocket_address"]) == ("h:1", "h:3")


def test_a_published_member_is_read_unchanged() -> None:
    published = Member(id="a", address="h:1", degradations=("late",), process=Process("boot", "ns", 7), sessions=3)
    assert Member.decode(published.encode(), token=9) == Member(
        id="a", address="h:1", degradations=("late",), process=Process("boot", "ns", 7), sessions=3, token=9
    )


def test_only_a_process_of_the_same_machine_can_be_recognised_as_ended() -> None:
    here = Process.here("boot")
    assert not here.surely_dead(here)
    assert Process("boot", here.namespace, 2**22 + 1).surely_dead(here)
    assert not Process("other", here.namespace, 2**22 + 1).surely_dead(here)


def relieved(members: list[Member], own: str) -> tuple[str, int] | None:
    found = relief(members, own=own, load=lambda one: one.sessions)
    return None if found is None else (found[0].id, found[1])


def test_clients_move_only_to_balance_the_load_and_not_all_at_once() -> None:
    assert relieved([member("a", 3), member("b", 2)], own="a") is None
    assert relieved([member("a", 4), member("b", 2), member("c", 3)], own="a") == ("b", 1)
    assert relieved([member("a", 4), member("b", 2), member("c", 3)], own="c") is None
    assert relieved([member("a", 40), member("b", 0), member("c", 40)], own="a") == ("b", 10)


def test_no_client_is_moved_to_or_by_an_unhealthy_broker() -> None:
    assert relieved([member("a", 9), member("b", ready=False), member("c", draining=True)], own="a") is None
    assert relieved([member("a", 9, draining=True), member("b")], own="a") is None
