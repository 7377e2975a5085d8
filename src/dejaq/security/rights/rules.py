"""A rule: it allows or denies operations on topics to principals.

A principal is `user:alice`, `group:ops`, `key:ID`, `certificate:NAME` or `*`. A topic is a full name (`mail`,
`~alice/mail`) or a prefix that ends in `*` (`mail*`, `~alice/*`, `*`). A producer group is a name or `*`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from dejaq import limits
from dejaq.domain.naming.topic_name import valid_topic_name
from dejaq.errors import InvalidArgument
from dejaq.security.rights.operations import Operation, with_implied

ANYTHING = "*"
KINDS = ("user", "group", "key", "certificate")
# What a caller does as a producer group, and may do as some groups only.
AS_GROUP = frozenset({Operation.PRODUCE, Operation.CHANGE})


class Effect(StrEnum):
    """What a rule says."""

    ALLOW = "allow"
    DENY = "deny"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule, which never changes: it is made and removed."""

    id: str
    effect: Effect
    principal: str
    operations: frozenset[Operation]
    topic: str
    group: str = ANYTHING
    # The principal that made the rule, and when.
    made_by: str = ""
    made_ms: int = 0
    # The operations with those that they imply, which only an allowing rule means.
    allows: frozenset[Operation] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "allows", with_implied(self.operations))

    def check(self) -> None:
        """Raise INVALID_ARGUMENT, naming the part, when the rule can never mean anything."""
        check_principal(self.principal)
        check_topic_pattern(self.topic)
        if not self.operations:
            raise InvalidArgument(f"a rule names at least one operation of {', '.join(Operation)}")
        if Operation.OPERATE in self.operations and self.topic != ANYTHING:
            raise InvalidArgument("`operate` is about the whole cluster: write a rule of its own for topic '*'")
        if not 1 <= len(self.group) <= limits.GROUP_CHARS_MAX or not self.group.isprintable():
            raise InvalidArgument(f"a producer group is 1 to {limits.GROUP_CHARS_MAX} printable characters, or '*'")
        if self.group != ANYTHING and not self.operations <= AS_GROUP:
            raise InvalidArgument(f"only {' and '.join(sorted(AS_GROUP))} are done as a producer group")

    @property
    def text(self) -> str:
        """The rule as people write it."""
        group = "" if self.group == ANYTHING else f" as group {self.group!r}"
        named = ",".join(sorted(self.operations))
        return f"{self.effect} {self.principal} {named} on {self.topic}{group}"

    def packed(self) -> bytes:
        """The record of the rule."""
        record = {
            "id": self.id,
            "effect": str(self.effect),
            "principal": self.principal,
            "operations": sorted(self.operations),
            "topic": self.topic,
            "group": self.group,
            "made_by": self.made_by,
            "made_ms": self.made_ms,
        }
        return json.dumps(record, sort_keys=True).encode()

    @classmethod
    def unpack(cls, record: bytes) -> Rule:
        """The rule that `packed` wrote; raises ValueError for anything else.

        An operation of a later release is left out: it can be asked for only of a broker of that release.
        """
        try:
            values = json.loads(record)
            known = frozenset(Operation) & frozenset(values["operations"])
            return cls(
                id=str(values["id"]),
                effect=Effect(values["effect"]),
                principal=str(values["principal"]),
                operations=frozenset(map(Operation, known)),
                topic=str(values["topic"]),
                group=str(values["group"]),
                made_by=str(values["made_by"]),
                made_ms=int(values["made_ms"]),
            )
        except (KeyError, TypeError) as wrong:
            raise ValueError(f"not a rule: {wrong!r}") from None


def check_principal(principal: str) -> None:
    """Raise INVALID_ARGUMENT when no caller can have this name."""
    kind, mark, name = principal.partition(":")
    good = principal == ANYTHING or (bool(mark) and kind in KINDS and bool(name) and principal.isprintable())
    if not good or len(principal) > limits.PRINCIPAL_CHARS_MAX:
        raise InvalidArgument(
            f"{principal[:80]!r} is not a principal: write user:NAME, group:NAME, key:ID, certificate:NAME or '*'"
        )


def check_topic_pattern(topic: str) -> None:
    """Raise INVALID_ARGUMENT when no topic can match."""
    name = topic.removesuffix(ANYTHING)
    # A prefix may end anywhere: after `~`, after the user, or in the name.
    completed = name + {True: "u/t", False: "t"}[name == "~"] if topic.endswith(ANYTHING) else name
    if not any(map(valid_topic_name, (completed, completed + "/t"))):
        raise InvalidArgument(f"{topic[:140]!r} is neither a topic nor a prefix of topics such as 'mail*'")


def operations_of(names: Iterable[str]) -> frozenset[Operation]:
    """The operations of these names, each of which may be a list with commas; raises INVALID_ARGUMENT."""
    found: set[Operation] = set()
    for name in (part.strip() for names_ in names for part in names_.split(",")):
        try:
            found.add(Operation(name))
        except ValueError:
            raise InvalidArgument(f"{name[:40]!r} is not an operation; known: {', '.join(Operation)}") from None
    return frozenset(found)
