"""The guard: every call and every frame of a client passes it before anything is done.

Decisions are remembered by principal, operation, topic, creator and group until the rules change, so that a call pays a
look into a dictionary, and a frame of a session a look into a set (`SessionRights`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from typing import Any

from dejaq import limits
from dejaq.broker.rights.masking import MASKS, prepare
from dejaq.broker.rights.needs import Claim, Need
from dejaq.broker.rights.own_names import resolve
from dejaq.broker.rights.table import CALLS, Open
from dejaq.domain.context import CallContext, Principal, PrincipalKind
from dejaq.domain.topic import Topic
from dejaq.errors import PermissionDenied
from dejaq.security.rights.matching import SOME_GROUP, Decision, RuleSet, names_of
from dejaq.security.rights.operations import OF_TOPICS, Operation

log = logging.getLogger(__name__)

_Question = tuple[Principal, Operation, str, str, str]


class Guard:
    """Decides what callers may do. While the broker has no users (`enabled` is false) it allows everything."""

    def __init__(
        self,
        *,
        enabled: bool,
        admins: Collection[str],
        find_topic: Callable[[str], Topic | None],
        refused: Callable[[CallContext, str, str], None] = lambda context, action, reason: None,
        changed_many: Callable[[CallContext, str, str], None] = lambda context, command, target: None,
    ) -> None:
        """`refused` is called for every refusal, with what was asked and why it was refused; `changed_many` for every
        command that changed many messages.
        """
        self.changed_many = changed_many
        self.enabled = enabled
        # Grows with every change of the rules.
        self.version = 1
        self.rules = RuleSet()
        self.topic = find_topic
        self.topic_of_snapshot: Callable[[str], str | None] = lambda snapshot: None
        self._admins = frozenset(admins)
        self._refused = refused
        self._kept: dict[_Question, Decision] = {}

    def set_rules(self, rules: RuleSet) -> None:
        """Use other rules from now on."""
        self.rules = rules
        self.version += 1
        self._kept.clear()

    def trusts(self, context: CallContext) -> bool:
        """Whether the caller needs no right: nothing is checked, or it is this process or another broker."""
        return not self.enabled or context.in_process or context.principal.kind is PrincipalKind.BROKER

    def is_admin(self, principal: Principal) -> bool:
        """Whether the broker's configuration gives the caller every right."""
        return principal.admin or not self._admins.isdisjoint(names_of(principal)[1:])

    # Decisions

    def decide(self, principal: Principal, claim: Claim) -> Decision:
        """Whether a principal may do something, and why."""
        topic = self.topic(claim.topic)
        creator = topic.creator if topic is not None else ""
        question = (principal, claim.operation, claim.topic, claim.group, creator)
        decision = self._kept.get(question)
        if decision is None:
            if len(self._kept) >= limits.DECISIONS_KEPT_MAX:
                self._kept.clear()
            decision = self._kept[question] = self._decided(principal, claim, creator)
        return decision

    def _decided(self, principal: Principal, claim: Claim, creator: str) -> Decision:
        if self.is_admin(principal):
            return Decision(True, f"{principal.name} is an administrator in the broker's configuration")
        return self.rules.decide(principal, claim.operation, claim.topic, group=claim.group, creator=creator)

    def allows(self, context: CallContext, operation: Operation, topic: str, group: str = SOME_GROUP) -> bool:
        """Whether the caller may do something."""
        return self.trusts(context) or self.decide(context.principal, Claim(operation, topic, group)).allowed

    def sees(self, context: CallContext, topic: str) -> bool:
        """Whether the caller may know that the topic exists: it may do something with it."""
        return any(self.allows(context, operation, topic) for operation in OF_TOPICS)

    def operates(self, context: CallContext) -> bool:
        """Whether the caller manages the cluster."""
        return self.allows(context, Operation.OPERATE, "*")

    # Enforcement

    def admit(self, context: CallContext, method: str, request: Any) -> bool:
        """Let a call begin, or raise PERMISSION_DENIED; returns whether bodies must be masked in its answer.

        Also writes full names of the caller's own topics into the request.
        """
        if self.trusts(context):
            return False
        resolve(request, context.principal.user)
        entry = CALLS.get(method)
        if entry is None:
            raise self._refusal(context, method, f"the broker has no rule for the call {method}")
        if isinstance(entry, Open):
            return False
        self.require(context, method, entry(request, self))
        if method not in MASKS:
            return False
        topic = self.topic_of_snapshot(request.snapshot) if hasattr(request, "snapshot") else request.topic
        if topic is None or self.allows(context, Operation.READ, topic):
            return False
        prepare(request)
        return True

    def require(self, context: CallContext, action: str, needs: Iterable[Need]) -> None:
        """Raise PERMISSION_DENIED unless the caller has a claim of every need."""
        if self.trusts(context):
            return
        for need in needs:
            reason = ""
            for claim in need:
                decision = self.decide(context.principal, claim)
                if decision.allowed:
                    break
                reason = reason or decision.reason
            else:
                raise self._refusal(context, action, reason)

    def mask(self, method: str, answer: Any) -> None:
        """Take the bodies out of an answer."""
        MASKS[method](answer)

    def _refusal(self, context: CallContext, action: str, reason: str) -> PermissionDenied:
        self._refused(context, action, reason)
        return PermissionDenied(f"{action}: {reason}; `dejaq rights check` explains a decision")
