import pytest

from dejaq.errors import Code, DejaqError
from dejaq.synchronization.embedded import own_peer, parse_peers
from dejaq.synchronization.etcd.endpoints import parse_endpoints


def test_an_address_may_have_several_servers_a_user_and_certificates() -> None:
    endpoints = parse_endpoints("etcd://broker:p%40ss@a:1,b,[::1]:3?ca=/ca.pem&cert=/c.pem&key=/k.pem")
    assert endpoints.addresses == ("a:1", "b:2379", "[::1]:3")
    assert (endpoints.user, endpoints.password) == ("broker", "p@ss")
    assert (endpoints.ca, endpoints.cert, endpoints.key) == ("/ca.pem", "/c.pem", "/k.pem")


@pytest.mark.parametrize(
    "url",
    ["http://a:1", "etcd://", "etcd://a:0", "etcd://a:b", "etcd://:p@a:1", "etcd://a:1?tls=yes", "etcd://a?key=/k"],
)
def test_an_invalid_address_is_refused(url: str) -> None:
    with pytest.raises(DejaqError) as refused:
        parse_endpoints(url)
    assert refused.value.code is Code.INVALID_ARGUMENT


def test_the_password_is_not_shown() -> None:
    url = "etcd://broker:hunter2@a:1"
    assert "hunter2" not in repr(parse_endpoints(url))
    with pytest.raises(DejaqError) as refused:
        parse_endpoints(url.replace("a:1", "a:x"))
    assert "hunter2" not in str(refused.value)


def test_a_certificate_that_cannot_be_read_is_named() -> None:
    with pytest.raises(DejaqError, match=r"/nowhere/ca\.pem cannot be read"):
        parse_endpoints("etcd://a:1?ca=/nowhere/ca.pem").certificates()


def test_the_own_machine_is_found_in_the_list() -> None:
    peers = parse_peers("embedded://10.0.0.1:7401,10.0.0.2:7401")
    assert own_peer(peers, ["box", "10.0.0.2"]) == "10.0.0.2:7401"
    assert own_peer(parse_peers("embedded"), []) == "127.0.0.1:7401"
    with pytest.raises(DejaqError, match="advertise"):
        own_peer(peers, ["box"])
    with pytest.raises(DejaqError, match="host:port"):
        parse_peers("embedded://10.0.0.1")
