"""Every precondition of a change, at the millisecond at which its result differs."""

import pytest

from dejaq import limits
from dejaq.domain.transitions import (
    Standing,
    check_lease,
    check_ts,
    decide_by_consumer,
    decide_by_owner,
    decide_create,
    decide_lease,
)
from dejaq.errors import Code

NOW = 1_000_000


def standing(ts: int = NOW, *, lock: str = "", version: int = 7) -> Standing:
    return Standing(ts=ts, owner="billing", lock_consumer=lock, version=version)


def test_create_needs_a_free_id() -> None:
    assert decide_create(exists=False, same_content=False) is Code.OK
    assert decide_create(exists=True, same_content=True) is Code.ALREADY_EXISTS
    assert decide_create(exists=True, same_content=False) is Code.ID_TAKEN


@pytest.mark.parametrize(
    ("message", "until", "code"),
    [
        pytest.param(standing(NOW), NOW, Code.OK, id="due now"),
        pytest.param(standing(NOW + 1), NOW, Code.INVALID_TIME, id="due in a millisecond"),
        pytest.param(standing(NOW + 1), NOW + 1, Code.OK, id="within the window"),
        pytest.param(standing(NOW + 2), NOW + 1, Code.INVALID_TIME, id="behind the window"),
        pytest.param(standing(NOW), NOW - 50, Code.OK, id="available, whatever the window"),
        pytest.param(standing(NOW + 1, lock="w"), NOW, Code.LEASED, id="leased"),
        pytest.param(standing(NOW + 1, lock="w"), NOW + 100, Code.LEASED, id="leased, its end in the window"),
        pytest.param(standing(NOW, lock="w"), NOW, Code.OK, id="lost"),
    ],
)
def test_lease_needs_a_message_that_is_available_or_nearly_due(message: Standing, until: int, code: Code) -> None:
    assert decide_lease(message, until=until, expires=max(until, NOW) + 1, now=NOW) is code


def test_a_lease_ends_after_now_and_its_window_is_limited() -> None:
    edge = NOW + limits.PREFETCH_MS_MAX
    assert decide_lease(standing(), until=edge, expires=edge + 1, now=NOW) is Code.OK
    assert decide_lease(standing(), until=edge, expires=edge, now=NOW) is Code.INVALID_LEASE
    assert decide_lease(standing(), until=edge + 1, expires=edge + 2, now=NOW) is Code.INVALID_LEASE
    assert decide_lease(standing(), until=NOW, expires=NOW, now=NOW) is Code.INVALID_LEASE


@pytest.mark.parametrize(
    ("message", "code"),
    [
        pytest.param(standing(NOW + 1, lock="w"), Code.OK, id="holder, version and time"),
        pytest.param(standing(NOW, lock="w"), Code.LEASE_LOST, id="expired this millisecond"),
        pytest.param(standing(NOW + 1, lock="other"), Code.LEASE_LOST, id="held by another"),
        pytest.param(standing(NOW + 1, lock=""), Code.LEASE_LOST, id="held by nobody"),
        pytest.param(standing(NOW + 1, lock="w", version=8), Code.LEASE_LOST, id="under a later lease"),
        pytest.param(None, Code.LEASE_LOST, id="gone"),
    ],
)
def test_a_consumer_needs_its_live_lease(message: Standing | None, code: Code) -> None:
    assert decide_by_consumer(message, consumer="w", version=7, now=NOW) is code


@pytest.mark.parametrize(
    ("message", "owner", "version", "code"),
    [
        pytest.param(standing(), "billing", None, Code.OK, id="free"),
        pytest.param(standing(NOW + 5), "billing", 7, Code.OK, id="waiting, at this version"),
        pytest.param(standing(NOW, lock="w"), "billing", None, Code.OK, id="lost"),
        pytest.param(standing(NOW + 1, lock="w"), "billing", None, Code.LEASED, id="leased"),
        pytest.param(standing(), "other", None, Code.NOT_OWNER, id="of another"),
        pytest.param(standing(NOW + 1, lock="w"), "other", None, Code.NOT_OWNER, id="of another, leased"),
        pytest.param(standing(), "billing", 6, Code.VERSION_CONFLICT, id="changed"),
        pytest.param(standing(NOW + 1, lock="w"), "billing", 6, Code.LEASED, id="leased and changed"),
        pytest.param(None, "billing", 7, Code.NOT_FOUND, id="gone"),
    ],
)
def test_an_owner_needs_its_own_free_message(
    message: Standing | None, owner: str, version: int | None, code: Code
) -> None:
    assert decide_by_owner(message, owner=owner, now=NOW, version=version) is code


def test_version_zero_is_a_version() -> None:
    assert decide_by_owner(standing(), owner="billing", now=NOW, version=0) is Code.VERSION_CONFLICT


@pytest.mark.parametrize(
    ("ts", "code"),
    [
        (-1, Code.INVALID_TIME),
        (0, Code.OK),
        (NOW + 500, Code.OK),
        (NOW + 501, Code.TOO_FAR),
        (limits.TS_MS_MAX + 1, Code.INVALID_TIME),
    ],
)
def test_times_are_bounded_by_the_topic(ts: int, code: Code) -> None:
    assert check_ts(ts, now=NOW, max_future_ms=500) is code


def test_the_last_time_is_the_end_of_the_year_9999() -> None:
    assert check_ts(limits.TS_MS_MAX, now=NOW, max_future_ms=limits.TS_MS_MAX) is Code.OK


@pytest.mark.parametrize(
    ("lease_ms", "code"),
    [
        (limits.LEASE_MS_MIN - 1, Code.INVALID_LEASE),
        (limits.LEASE_MS_MIN, Code.OK),
        (5_000, Code.OK),
        (5_001, Code.INVALID_LEASE),
    ],
)
def test_leases_are_bounded_by_the_topic(lease_ms: int, code: Code) -> None:
    assert check_lease(lease_ms, max_lease_ms=5_000) is code
