from dejaq.broker.carrier.dealer import Seat
from dejaq.broker.cluster.seats import Seats, encode


def told(**consumers: tuple[int, Seat | None]) -> bytes:
    return encode({1: consumers}, {1: ["group"]})


def test_of_two_consumers_of_one_name_the_later_is_the_one_that_lives():
    seats = Seats()
    assert seats.tell("a", told(x=(10, Seat("x", weight=3, rack="r")))) == {1}
    assert seats.tell("b", told(x=(11, None), y=(1, Seat("y")))) == {1}
    assert {name: place.broker for name, place in seats.of(1).items()} == {"x": "b", "y": "b"}
    assert seats.tell("b", None) == {1}
    assert seats.of(1)["x"].seat == Seat("x", weight=3, rack="r")


def test_what_has_not_changed_is_no_news():
    seats = Seats()
    seats.tell("a", told(x=(10, None)))
    assert seats.tell("a", told(x=(10, None))) == set()
    assert seats.tell("nobody", None) == set()
    assert seats.of(2) == {}
