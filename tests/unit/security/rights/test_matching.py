"""Deny wins, no rule means no, and the caller's own topics need no rule."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dejaq.domain.context import ANONYMOUS, BROKER, Principal, PrincipalKind
from dejaq.errors import Code, DejaqError
from dejaq.security.rights.matching import EVERY_GROUP, RuleSet, creator_name, names_of
from dejaq.security.rights.operations import OF_TOPICS, Operation, with_implied
from dejaq.security.rights.rules import AS_GROUP, Effect, Rule, operations_of

ALICE = Principal("user:corp/alice", PrincipalKind.USER, user="alice", groups=frozenset({"ops"}))
BOB = Principal("key:7f", PrincipalKind.KEY)
ALLOW, DENY = Effect.ALLOW, Effect.DENY


def rule(effect: Effect, principal: str, operations: str, topic: str, group: str = "*") -> Rule:
    made = Rule(f"{effect}-{principal}-{topic}", effect, principal, operations_of([operations]), topic, group)
    made.check()
    return made


def allowed(rules: RuleSet, operation: Operation, topic: str, *, who: Principal = ALICE, group: str = "") -> bool:
    return rules.decide(who, operation, topic, group=group).allowed


def test_without_a_rule_nothing_is_allowed_and_the_reason_says_what_is_missing() -> None:
    decision = RuleSet().decide(ALICE, Operation.PRODUCE, "mail", group="billing")
    assert not decision.allowed
    assert decision.reason == "no rule allows user:alice to produce on 'mail' as group 'billing'"


@pytest.mark.parametrize("principal", ["*", "user:alice", "user:corp/alice", "group:ops"])
def test_a_rule_means_a_caller_by_any_of_the_caller_s_names(principal: str) -> None:
    rules = RuleSet([rule(ALLOW, principal, "read", "mail")])
    assert allowed(rules, Operation.READ, "mail")
    assert allowed(rules, Operation.READ, "mail", who=BOB) is (principal == "*")


def test_a_prefix_matches_every_topic_that_begins_so() -> None:
    rules = RuleSet([rule(ALLOW, "user:alice", "consume", "mail*")])
    assert [allowed(rules, Operation.CONSUME, name) for name in ("mail", "mail.dead", "mai", "email")] == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize("first", [0, 1])
def test_deny_wins_in_any_order_and_over_the_longer_match(first: int) -> None:
    pair = [rule(ALLOW, "user:alice", "consume", "mail"), rule(DENY, "*", "consume", "m*")]
    decision = RuleSet([pair[first], pair[1 - first]]).decide(ALICE, Operation.CONSUME, "mail")
    assert not decision.allowed
    assert decision.rule == pair[1]


def test_a_user_s_own_topics_need_no_rule_and_a_rule_can_deny_them() -> None:
    assert allowed(RuleSet(), Operation.ADMIN, "~alice/mail")
    assert not allowed(RuleSet(), Operation.INSPECT, "~alicia/mail")
    assert not allowed(RuleSet(), Operation.INSPECT, "~alice/mail", who=BOB)
    assert not allowed(RuleSet([rule(DENY, "group:ops", "produce", "~alice/*")]), Operation.PRODUCE, "~alice/mail")


def test_the_creator_has_every_right_on_the_topic_but_none_on_the_cluster() -> None:
    for operation in OF_TOPICS:
        assert RuleSet().decide(ALICE, operation, "mail", creator="user:alice").allowed
        assert not RuleSet().decide(BOB, operation, "mail", creator="user:alice").allowed
    assert not RuleSet().decide(ALICE, Operation.OPERATE, "*", creator="user:alice").allowed


def test_an_anonymous_caller_is_never_a_creator() -> None:
    assert creator_name(ANONYMOUS) == ""
    assert not RuleSet().decide(ANONYMOUS, Operation.READ, "mail", creator="").allowed


def test_a_key_of_a_user_creates_for_the_user() -> None:
    key = Principal("key:1", PrincipalKind.KEY, user="alice")
    assert creator_name(key) == creator_name(ALICE) == "user:alice"
    assert creator_name(BOB) == "key:7f"


def test_the_broker_and_configured_administrators_may_do_everything() -> None:
    rules = RuleSet([rule(DENY, "*", "read,consume", "*")])
    for who in (BROKER, Principal("user:root", PrincipalKind.USER, user="root", admin=True)):
        assert all(allowed(rules, operation, "mail", who=who) for operation in Operation)


def test_admin_includes_everything_about_the_topic_and_read_includes_inspect() -> None:
    rules = RuleSet([rule(ALLOW, "user:alice", "admin", "mail"), rule(ALLOW, "user:alice", "read", "log")])
    assert {one for one in Operation if allowed(rules, one, "mail", group="g")} == OF_TOPICS
    assert {one for one in Operation if allowed(rules, one, "log", group="g")} == {Operation.READ, Operation.INSPECT}


def test_denying_admin_denies_nothing_else() -> None:
    rules = RuleSet([rule(ALLOW, "*", "produce", "mail"), rule(DENY, "*", "admin", "mail")])
    assert allowed(rules, Operation.PRODUCE, "mail")


def test_a_rule_of_one_producer_group_allows_that_group_alone() -> None:
    rules = RuleSet([rule(ALLOW, "*", "produce,change", "mail", "billing")])
    assert allowed(rules, Operation.PRODUCE, "mail", group="billing")
    assert not allowed(rules, Operation.PRODUCE, "mail", group="other")
    assert not allowed(rules, Operation.PRODUCE, "mail", group=EVERY_GROUP)
    both = RuleSet([rule(ALLOW, "*", "produce", "mail"), rule(DENY, "*", "produce", "mail", "billing")])
    assert allowed(both, Operation.PRODUCE, "mail", group="other")
    assert not allowed(both, Operation.PRODUCE, "mail", group="billing")
    assert not allowed(both, Operation.PRODUCE, "mail", group=EVERY_GROUP)


@pytest.mark.parametrize(
    ("principal", "operations", "topic", "group"),
    [
        ("alice", "read", "mail", "*"),
        ("user:", "read", "mail", "*"),
        ("user:" + "x" * 400, "read", "mail", "*"),
        ("*", "fly", "mail", "*"),
        ("*", "", "mail", "*"),
        ("*", "read", "ma*l", "*"),
        ("*", "read", "/security", "*"),
        ("*", "read", "", "*"),
        ("*", "operate", "mail", "*"),
        ("*", "consume", "mail", "billing"),
        ("*", "produce", "mail", ""),
    ],
)
def test_a_rule_that_can_mean_nothing_is_refused(principal: str, operations: str, topic: str, group: str) -> None:
    with pytest.raises(DejaqError) as refused:
        rule(ALLOW, principal, operations, topic, group)
    assert refused.value.code is Code.INVALID_ARGUMENT


@pytest.mark.parametrize("topic", ["*", "~*", "~ali*", "~alice/*", "~alice/ma*", "mail*", "mail"])
def test_every_prefix_of_a_topic_is_a_pattern(topic: str) -> None:
    rule(ALLOW, "*", "read", topic)


def test_a_rule_survives_its_record() -> None:
    one = Rule("r1", DENY, "user:alice", AS_GROUP, "mail*", "billing", "user:root", 17)
    assert Rule.unpack(one.packed()) == one
    for record in (b"", b"{}", b"[]", b'{"id": 1}', one.packed().replace(b"deny", b"maybe")):
        with pytest.raises(ValueError, match=r"."):
            Rule.unpack(record)


TOPICS = ("a", "ab", "~alice/a", "~alice/b", "~bob/a")
PATTERNS = (*TOPICS, "*", "a*", "~*", "~alice/*")
RULES = st.builds(
    Rule,
    id=st.just("r"),
    effect=st.sampled_from(Effect),
    principal=st.sampled_from(("*", "user:alice", "group:ops", "user:bob", "key:7f")),
    operations=st.frozensets(st.sampled_from(Operation), min_size=1, max_size=2),
    topic=st.sampled_from(PATTERNS),
    group=st.sampled_from(("*", "billing")),
)


def _plain(rules: list[Rule], who: Principal, operation: Operation, topic: str, group: str) -> bool:
    """The same decision, as the documentation says it, over the whole list."""
    mine = [
        one
        for one in rules
        if one.principal in names_of(who)
        and (one.topic == topic or (one.topic.endswith("*") and topic.startswith(one.topic[:-1])))
    ]
    if any(
        one.effect is DENY and operation in one.operations and (one.group in ("*", group) or not group) for one in mine
    ):
        return False
    own = who.user == "alice" and topic.startswith("~alice/") and operation is not Operation.OPERATE
    return own or any(
        one.effect is ALLOW and operation in with_implied(one.operations) and one.group in ("*", group) for one in mine
    )


@given(rules=st.lists(RULES, max_size=8))
def test_the_index_decides_like_a_walk_over_all_rules(rules: list[Rule]) -> None:
    indexed = RuleSet(rules)
    for who, operation, topic, group in product((ALICE, BOB), Operation, TOPICS, ("", "billing", "other")):
        assert indexed.decide(who, operation, topic, group=group).allowed is _plain(rules, who, operation, topic, group)
