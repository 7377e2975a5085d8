"""Back-off policies: waits that grow within their limits, and a text form that is parsed to the same policy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dejaq import limits
from dejaq.domain.backoff import Backoff
from dejaq.errors import Code, InvalidArgument

chances = st.floats(min_value=0, max_value=1, exclude_max=True)


@st.composite
def policies(draw: st.DrawFn) -> Backoff:
    first = draw(st.integers(0, limits.BACKOFF_MS_MAX))
    longest = draw(st.integers(first, limits.BACKOFF_MS_MAX))
    return Backoff(first, longest, factor=draw(st.sampled_from([1.5, 2.0, 100.0])), jitter=draw(chances))


def test_a_fixed_wait_is_the_same_after_every_attempt() -> None:
    policy = Backoff.fixed(2.5)
    assert {policy.delay_ms(attempts, 0.7) for attempts in (1, 2, 1_000_000)} == {2_500}


def test_an_exponential_wait_doubles_up_to_its_maximum() -> None:
    policy = Backoff.exponential(1, 10, jitter=0)
    assert [policy.delay_ms(attempts, 0.9) for attempts in (1, 2, 3, 4, 5, 6)] == [1_000, 2_000, 4_000, 8_000] + [
        10_000
    ] * 2


@given(policy=policies(), attempts=st.integers(1, 2**31), chance=chances)
def test_a_wait_stays_between_the_maximum_jitter_and_the_limit(policy: Backoff, attempts: int, chance: float) -> None:
    wait = policy.delay_ms(attempts, chance)
    assert round(policy.first_ms * (1 - policy.jitter)) <= wait <= policy.longest_ms
    assert policy.delay_ms(attempts, 0) >= wait


def test_jitter_shortens_a_wait_by_at_most_its_share() -> None:
    policy = Backoff.fixed(10, jitter=0.5)
    assert (policy.delay_ms(1, 0.0), policy.delay_ms(1, 0.5), policy.delay_ms(1, 1.0)) == (10_000, 7_500, 5_000)


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("fixed:5s", Backoff.fixed(5)),
        ("fixed:250ms:0.2", Backoff.fixed(0.25, jitter=0.2)),
        ("exponential:1s:5m", Backoff.exponential(1, 300, jitter=0)),
        ("exponential:100ms:2h:0.5", Backoff.exponential(0.1, 7_200)),
    ],
)
def test_a_text_is_parsed_to_its_policy(text: str, policy: Backoff) -> None:
    assert Backoff.parse(text) == policy
    assert Backoff.parse(str(policy)) == policy


NO_POLICIES = """
fixed fixed: fixed:-1s fixed:5 fixed:5s:2 fixed:5s:x fixed:31d fixed:5s:nan linear:1s exponential:1s exponential:5m:1s
exponential:1s:5m:1:0.5 exponential:1s:5m:1:2:3 exponential:1s:999999999999d
"""


@given(policy=policies())
def test_every_policy_is_parsed_from_its_own_text(policy: Backoff) -> None:
    assert Backoff.parse(str(policy)) == policy


@pytest.mark.parametrize("text", ["", *NO_POLICIES.split()])
def test_an_invalid_text_is_refused_with_the_valid_forms(text: str) -> None:
    with pytest.raises(InvalidArgument, match="not a back-off policy") as refused:
        Backoff.parse(text)
    assert refused.value.code is Code.INVALID_SETTING


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), True, "5"])
def test_a_wait_that_is_no_number_of_seconds_is_refused(seconds: float) -> None:
    with pytest.raises(InvalidArgument, match="wait in seconds"):
        Backoff.fixed(seconds)
