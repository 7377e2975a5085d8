"""The broker's count of the messages that a consumer holds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dejaq.broker.delivery.inflight import Inflight, mask_of
from dejaq.domain.batch import IdSpan, LeaseSet


def lease(
    lease_id: int, rows: int, *, expires: int = 100, size: int = 10, numbers: list[int] | None = None
) -> LeaseSet:
    return LeaseSet(
        lease_id=lease_id,
        consumer="c",
        expires=expires,
        spans=[IdSpan(rows, prefix="p")],
        ts=[0] * rows,
        bodies=[bytes(size)] * rows,
        rows=numbers,
    )


def test_rows_and_bytes_are_counted_and_uncounted() -> None:
    inflight = Inflight()
    inflight.add(lease(1, 4))
    inflight.add(lease(2, 2))
    assert (inflight.rows, inflight.bytes) == (6, 60)
    inflight.settle(1, mask_of([(0, 3)]))
    assert (inflight.rows, inflight.bytes) == (3, 30)
    inflight.settle(1, mask_of([(1, 4)]))
    assert (inflight.rows, 1 in inflight) == (2, False)
    inflight.settle(2, None)
    assert (inflight.rows, inflight.bytes) == (0, 0)
    inflight.settle(3, None)
    assert inflight.rows == 0


def test_extended_rows_outlast_the_other_rows() -> None:
    inflight = Inflight()
    inflight.add(lease(1, 3, expires=100))
    inflight.extend(1, mask_of([(1, 2)]), 200)
    assert inflight.next_expiry() == 100
    assert inflight.expire(100) == 2
    assert inflight.rows == 1
    inflight.extend(1, None, 300)
    assert inflight.expire(299) == 0
    assert inflight.expire(300) == 1
    assert (inflight.rows, inflight.bytes) == (0, 0)


def test_the_rest_of_a_lease_may_be_counted_in_parts() -> None:
    inflight = Inflight()
    inflight.add(lease(1, 2, expires=100, numbers=[0, 5]))
    inflight.add(lease(1, 1, expires=200, numbers=[7]))
    assert inflight.rows == 3
    assert inflight.expire(150) == 2
    inflight.settle(1, mask_of([(7, 8)]))
    assert inflight.rows == 0


def test_settled_leases_do_not_accumulate() -> None:
    inflight = Inflight()
    for n in range(5_000):
        inflight.add(lease(n, 1, expires=10**12))
        inflight.settle(n, None)
    assert len(inflight._expiries) <= 1_002


@given(
    steps=st.lists(
        st.tuples(
            st.integers(1, 3),
            st.sampled_from(["settle", "extend", "expire"]),
            st.integers(0, 9),
            st.integers(0, 9),
        ),
        max_size=30,
    )
)
def test_the_totals_always_equal_a_recount(steps: list[tuple[int, str, int, int]]) -> None:
    inflight = Inflight()
    model = {(lease_id, row): 100 for lease_id in (1, 2, 3) for row in range(10)}
    for lease_id in (1, 2, 3):
        inflight.add(lease(lease_id, 10, expires=100))
    now = 0
    for lease_id, step, start, length in steps:
        rows = range(start, min(10, start + length))
        mask = mask_of([(start, min(10, start + length))] if rows else [])
        if step == "settle":
            inflight.settle(lease_id, mask)
            for row in rows:
                model.pop((lease_id, row), None)
        elif step == "extend":
            inflight.extend(lease_id, mask, now + 150)
            model.update({(lease_id, row): now + 150 for row in rows if (lease_id, row) in model})
        else:
            now += 40
            lost = [key for key, expires in model.items() if expires <= now]
            assert inflight.expire(now) == len(lost)
            for key in lost:
                del model[key]
        assert (inflight.rows, inflight.bytes) == (len(model), 10 * len(model))


def test_the_first_time_of_a_lease_is_that_of_all_its_parts() -> None:
    inflight = Inflight()
    assert inflight.first_ms(1) == 0
    for expires, first in ((100, 50), (200, 30), (300, 40)):
        part = lease(1, 2, expires=expires)
        part.ts = [first, first + 5]
        inflight.add(part)
    assert inflight.first_ms(1) == 30


def test_the_ends_of_a_lease_are_those_that_the_storage_may_have() -> None:
    """A recall names them: one that named an end too few would leave a message with nobody until its lease ends."""
    inflight = Inflight()
    inflight.add(lease(1, 4, expires=100))
    assert inflight.ends_of(1, None) == [100]
    assert inflight.ends_of(2, None) == []
    inflight.extending(1, 150)
    assert inflight.ends_of(1, 0b1) == [100, 150], "the storage may have moved it before it answered"
    inflight.extend(1, 0b1, 150)
    assert inflight.ends_of(1, 0b1) == [150]
    assert inflight.ends_of(1, 0b10) == [100]
    assert inflight.ends_of(1, 0b11) == [100, 150]
    inflight.extend(1, 0b1, 120)
    assert inflight.ends_of(1, 0b1) == [150], "the storage moves no end to an earlier time"
    inflight.settle(1, 0b11)
    assert inflight.ends_of(1, 0b11) == []
    for end in range(1_000, 1_100):
        inflight.extending(1, end)
    assert len(inflight.ends_of(1, None)) < 12, "extensions without an answer are forgotten in the end"
