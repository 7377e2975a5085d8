"""The calls of the `Rights` service: rules are listed, added, removed and explained."""

from __future__ import annotations

from collections.abc import Sequence

from dejaq import limits
from dejaq.broker.rights.needs import OPERATING, Claim
from dejaq.broker.rights.setup import RightsParts
from dejaq.domain.context import CallContext, Principal, PrincipalKind
from dejaq.errors import Code, InvalidArgument, error_of
from dejaq.protocol.v1 import rights_pb2 as proto
from dejaq.security.rights.matching import creator_name, names_of
from dejaq.security.rights.quotas import Quota
from dejaq.security.rights.rules import (
    ANYTHING,
    AS_GROUP,
    Effect,
    Rule,
    check_principal,
    check_topic_pattern,
    operations_of,
)

_KINDS = {"user": PrincipalKind.USER, "key": PrincipalKind.KEY, "certificate": PrincipalKind.CERTIFICATE}


class RightsCalls:
    """Answers `Rights.List`, `Put`, `Remove` and `Check`."""

    def __init__(self, parts: RightsParts) -> None:
        self._guard = parts.guard
        self._book = parts.book
        self._quotas = parts.quotas

    async def listed(self, context: CallContext, request: proto.ListRulesRequest) -> proto.ListRulesResponse:
        """The rules that the caller may see, oldest first."""
        everything = self._guard.operates(context)
        names = set(names_of(context.principal))
        made_by = _author(context)
        rules = [
            rule
            for rule in sorted(self._book.rules.values(), key=lambda rule: (rule.made_ms, rule.id))
            if (everything or rule.principal in names or (made_by and rule.made_by == made_by))
            and request.principal in ("", rule.principal)
            and (not request.topic or _matches(rule.topic, request.topic))
        ]
        return proto.ListRulesResponse(rules=map(rule_to_proto, rules))

    async def put(self, context: CallContext, request: proto.PutRuleRequest) -> proto.RuleResponse:
        """Add a rule, or find the same one."""
        rule = rule_from_proto(request.rule, made_by=_author(context))
        made = sum(one.made_by == rule.made_by for one in self._book.rules.values())
        if made >= limits.RULES_PER_USER_MAX and not self._guard.operates(context):
            # A repeat of a rule is refused too; the caller can list its rules.
            most = limits.RULES_PER_USER_MAX
            raise error_of(Code.LIMIT_EXCEEDED, f"{rule.made_by} has made {most} rules, the most of a caller")
        kept, created = await self._book.add(context, rule)
        return proto.RuleResponse(rule=rule_to_proto(kept), created=created)

    async def remove(self, context: CallContext, request: proto.RemoveRuleRequest) -> proto.RemoveRuleResponse:
        """Remove a rule of one's own, or any with the right `operate`."""
        rule = self._book.rules.get(request.id)
        if rule is None or not (rule.made_by and rule.made_by == _author(context)):
            self._guard.require(context, "Rights.Remove", (OPERATING,))
        return proto.RemoveRuleResponse(rule=rule_to_proto(await self._book.remove(context, request.id)))

    async def check(self, context: CallContext, request: proto.CheckRightRequest) -> proto.CheckRightResponse:
        """Explain a decision."""
        (operation,) = operations_of([request.operation])
        check_topic_pattern(request.topic)
        if request.principals:
            self._guard.require(context, "Rights.Check", (OPERATING,))
        who = _principal(request.principals) if request.principals else context.principal
        group = request.group if operation in AS_GROUP else ""
        decision = self._guard.decide(who, Claim(operation, request.topic, group))
        answer = proto.CheckRightResponse(
            allowed=decision.allowed, reason=decision.reason, enforced=self._guard.enabled
        )
        if decision.rule is not None:
            answer.rule.CopyFrom(rule_to_proto(decision.rule))
        return answer

    async def set_quota(self, context: CallContext, request: proto.QuotaRequest) -> proto.QuotaResponse:
        """Set or remove the quota of a principal."""
        asked = request.quota
        quota = Quota(asked.principal, asked.topics, asked.rate, asked.pending, asked.bytes)
        await self._book.set_quota(context, quota)
        return proto.QuotaResponse(quota=self._quota(quota))

    async def quotas(self, context: CallContext, request: proto.ListQuotasRequest) -> proto.ListQuotasResponse:
        """The quotas that the caller may see, by principal."""
        known = self._quotas.quotas
        if self._guard.operates(context):
            return proto.ListQuotasResponse(quotas=[self._quota(known.quotas[name]) for name in sorted(known.quotas)])
        own = known.of(context.principal)
        if own is None:
            return proto.ListQuotasResponse()
        return proto.ListQuotasResponse(quotas=[self._quota(own, creator_name(context.principal))])

    def _quota(self, quota: Quota, user: str = "") -> proto.RightsQuota:
        creator = user or quota.principal
        return proto.RightsQuota(
            principal=quota.principal,
            topics=quota.topics,
            rate=quota.rate,
            pending=quota.pending,
            topics_used=self._quotas.topics_of(creator),
            pending_used=self._quotas.pending[creator],
            bytes=quota.bytes,
            bytes_used=self._quotas.bytes[creator],
        )


def _author(context: CallContext) -> str:
    return creator_name(context.principal)


def _matches(pattern: str, topic: str) -> bool:
    return topic.startswith(pattern[:-1]) if pattern.endswith(ANYTHING) else topic == pattern


def _principal(names: Sequence[str]) -> Principal:
    """The caller that has these names."""
    groups: set[str] = set()
    others: list[tuple[str, str]] = []
    for name in names:
        check_principal(name)
        kind, _, rest = name.partition(":")
        if kind == "group":
            groups.add(rest)
        else:
            others.append((kind, rest))
    if len(others) > 1 or ANYTHING in names:
        raise InvalidArgument("name one user, key or certificate, and its groups as group:NAME")
    kind, name = others[0] if others else ("user", "")
    return Principal(
        f"{kind}:{name}" if name else "anonymous",
        _KINDS[kind] if name else PrincipalKind.ANONYMOUS,
        user=name if kind == "user" else "",
        groups=frozenset(groups),
    )


def rule_from_proto(rule: proto.RightsRule, *, made_by: str) -> Rule:
    """The rule that a client sent; raises INVALID_ARGUMENT."""
    try:
        effect = Effect(rule.effect)
    except ValueError:
        raise InvalidArgument(f"{rule.effect[:40]!r} is neither allow nor deny") from None
    operations = operations_of(rule.operations)
    return Rule("", effect, rule.principal, operations, rule.topic, rule.group or ANYTHING, made_by)


def rule_to_proto(rule: Rule) -> proto.RightsRule:
    """A rule for the client."""
    return proto.RightsRule(
        id=rule.id,
        effect=rule.effect,
        principal=rule.principal,
        operations=sorted(rule.operations),
        topic=rule.topic,
        group="" if rule.group == ANYTHING else rule.group,
        made_by=rule.made_by,
        made_ms=rule.made_ms,
    )
