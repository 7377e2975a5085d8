from dejaq.broker.assignment.assignment import Seat
from dejaq.broker.cluster.seats import Seats, encode, record_key

A, B = record_key("a", 1), record_key("b", 3)


def published(**consumers: tuple[int, Seat | None]) -> bytes:
    return encode({1: consumers})


def test_the_later_of_two_consumers_of_one_name_is_valid() -> None:
    seats = Seats()
    assert seats.take(A, published(x=(10, Seat("x", weight=3, rack="r")))) == {(1, "x")}
    assert seats.take(B, published(x=(11, None), y=(1, Seat("y")))) == {(1, "x"), (1, "y")}
    assert {name: place.broker for name, place in seats.of(1).items()} == {"x": "b", "y": "b"}
    assert seats.take(B, None) == {(1, "x"), (1, "y")}
    assert seats.of(1)["x"].seat == Seat("x", weight=3, rack="r")


def test_an_unchanged_record_changes_nothing() -> None:
    seats = Seats()
    seats.take(A, published(x=(10, None)))
    assert seats.take(A, published(x=(10, None))) == set()
    assert seats.take(record_key("nobody", 1), None) == set()
    assert seats.of(2) == {}
