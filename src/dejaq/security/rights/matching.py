"""The decision: deny wins, then the caller's own topics and the rules that allow; without a rule, no.

Rules are found by principal and topic in dictionaries, so that a decision takes the same time with ten rules and with
ten thousand: one look for each name of the caller and each length of prefix that occurs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from dejaq import limits
from dejaq.domain.context import Principal, PrincipalKind
from dejaq.domain.naming.topic_name import namespace_of
from dejaq.security.rights.operations import OF_TOPICS, Operation
from dejaq.security.rights.rules import ANYTHING, Effect, Rule

# For a question about every producer group at once, and about any one of them. No group can have the second name.
EVERY_GROUP = ""
SOME_GROUP = "*" * (limits.GROUP_CHARS_MAX + 1)


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether something is allowed, and why: the rule that decided, or another reason."""

    allowed: bool
    reason: str
    rule: Rule | None = None


class RuleSet:
    """Rules, of which nothing is removed: a change of the rules makes another set."""

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        # By principal and topic: literal names, and prefixes without their mark.
        self._literal: dict[tuple[str, str], list[Rule]] = {}
        self._prefix: dict[tuple[str, str], list[Rule]] = {}
        self._lengths: list[int] = []
        self.count = 0
        for rule in rules:
            self.add(rule)

    def add(self, rule: Rule) -> None:
        """Add a rule, while the set is being made."""
        self.count += 1
        if not rule.topic.endswith(ANYTHING):
            self._literal.setdefault((rule.principal, rule.topic), []).append(rule)
            return
        prefix = rule.topic.removesuffix(ANYTHING)
        self._prefix.setdefault((rule.principal, prefix), []).append(rule)
        if len(prefix) not in self._lengths:
            self._lengths.append(len(prefix))

    def decide(
        self, principal: Principal, operation: Operation, topic: str, *, group: str = EVERY_GROUP, creator: str = ""
    ) -> Decision:
        """Whether a caller may do something to a topic, which `creator` created, as a producer group."""
        if principal.kind is PrincipalKind.BROKER or principal.admin:
            return Decision(True, f"{principal.name} is an administrator in the broker's configuration")
        allowing: Rule | None = None
        for rule in self._of(names_of(principal), topic):
            if rule.effect is Effect.DENY:
                if operation in rule.operations and (rule.group == ANYTHING or group in (EVERY_GROUP, rule.group)):
                    return Decision(False, f"the rule {rule.id} denies it: {rule.text}", rule)
            elif (
                allowing is None
                and operation in rule.allows
                and (group == SOME_GROUP or rule.group in (ANYTHING, group))
            ):
                allowing = rule
        if operation in OF_TOPICS:
            if principal.user and namespace_of(topic) == principal.user:
                return Decision(True, f"{topic!r} is a topic of the user {principal.user!r}")
            if creator and creator == creator_name(principal):
                return Decision(True, f"{creator} created {topic!r}")
        if allowing is not None:
            return Decision(True, f"the rule {allowing.id} allows it: {allowing.text}", allowing)
        return Decision(False, _missing(principal, operation, topic, group))

    def _of(self, names: Sequence[str], topic: str) -> Iterator[Rule]:
        """The rules for any of these names that match the topic."""
        for name in names:
            yield from self._literal.get((name, topic), ())
            for length in self._lengths:
                if length <= len(topic):
                    yield from self._prefix.get((name, topic[:length]), ())


def names_of(principal: Principal) -> tuple[str, ...]:
    """The names by which rules can mean a caller."""
    user = (f"user:{principal.user}",) if principal.user else ()
    groups = (f"group:{group}" for group in sorted(principal.groups))
    return tuple(dict.fromkeys((ANYTHING, principal.name, *user, *groups)))


def creator_name(principal: Principal) -> str:
    """The name that a new topic remembers: the user, whatever key the user came with; empty for nobody."""
    if principal.kind in (PrincipalKind.ANONYMOUS, PrincipalKind.BROKER):
        return ""
    return f"user:{principal.user}" if principal.user else principal.name


def _missing(principal: Principal, operation: Operation, topic: str, group: str) -> str:
    where = "the cluster" if operation is Operation.OPERATE else f"{topic!r}"
    as_group = f" as group {group!r}" if group not in (EVERY_GROUP, SOME_GROUP) else ""
    who = f"user:{principal.user}" if principal.user else principal.name
    return f"no rule allows {who} to {operation} on {where}{as_group}"
