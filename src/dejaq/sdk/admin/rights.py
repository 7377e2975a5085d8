"""What a client does with rights: rules are listed, added and removed, and decisions are explained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dejaq.protocol.v1 import rights_pb2 as rights
from dejaq.sdk.session.seeds import Seeds
from dejaq.sdk.session.settings import ClientSettings


@dataclass(frozen=True, slots=True)
class RightsRule:
    """One rule: it allows or denies operations on a topic, or on topics that begin alike, to a principal."""

    id: str
    # "allow" or "deny"
    effect: str
    principal: str
    operations: tuple[str, ...]
    topic: str
    # The producer group that it is about; empty for all.
    group: str
    made_by: str
    made_ms: int

    @classmethod
    def from_proto(cls, proto: rights.RightsRule) -> RightsRule:
        """The rule that the broker's answer describes."""
        return cls(
            id=proto.id,
            effect=proto.effect,
            principal=proto.principal,
            operations=tuple(proto.operations),
            topic=proto.topic,
            group=proto.group,
            made_by=proto.made_by,
            made_ms=proto.made_ms,
        )


@dataclass(frozen=True, slots=True)
class RightsDecision:
    """Whether something is allowed, and why. `enforced` is False at a broker that checks no rights."""

    allowed: bool
    reason: str
    rule: RightsRule | None
    enforced: bool


@dataclass(frozen=True, slots=True)
class RightsQuota:
    """The limits of a principal (0: none), and what it uses, if it is one user, key or certificate."""

    principal: str
    topics: int
    # Messages per second, at each broker.
    rate: int
    # Messages in all the topics that it created.
    pending: int
    # Bytes of the bodies in those topics.
    bytes: int
    topics_used: int
    pending_used: int
    bytes_used: int

    @classmethod
    def from_proto(cls, proto: rights.RightsQuota) -> RightsQuota:
        """The quota that the broker's answer describes."""
        limits = (proto.topics, proto.rate, proto.pending, proto.bytes)
        return cls(proto.principal, *limits, proto.topics_used, proto.pending_used, proto.bytes_used)


class Rights:
    """The rules of the cluster. Create it with `client.rights()`."""

    def __init__(self, seeds: Seeds, settings: ClientSettings) -> None:
        self._seeds = seeds
        self._settings = settings

    async def list(self, *, principal: str = "", topic: str = "") -> Sequence[RightsRule]:
        """The rules that the caller may see, oldest first: all, those of a principal, or those that match a topic."""
        request = rights.ListRulesRequest(principal=principal, topic=topic)
        answer = await self._seeds.call("Rights.List", request, rights.ListRulesResponse, patience=self._settings)
        return [RightsRule.from_proto(rule) for rule in answer.rules]

    async def allow(self, principal: str, operations: Sequence[str], topic: str, *, group: str = "") -> RightsRule:
        """Allow operations on a topic, or on all that begin with `PREFIX*`, to a principal; a repeat changes nothing.

        A principal is `user:NAME`, `group:NAME`, `key:ID`, `certificate:NAME` or `*`. With `group`, `produce` and
        `change` are allowed as that producer group only.
        """
        return await self._put("allow", principal, operations, topic, group)

    async def deny(self, principal: str, operations: Sequence[str], topic: str, *, group: str = "") -> RightsRule:
        """Deny the same, whatever other rules allow."""
        return await self._put("deny", principal, operations, topic, group)

    async def _put(self, effect: str, principal: str, operations: Sequence[str], topic: str, group: str) -> RightsRule:
        rule = rights.RightsRule(effect=effect, principal=principal, operations=operations, topic=topic, group=group)
        answer = await self._seeds.call(
            "Rights.Put", rights.PutRuleRequest(rule=rule), rights.RuleResponse, patience=self._settings
        )
        return RightsRule.from_proto(answer.rule)

    async def remove(self, rule_id: str) -> RightsRule:
        """Remove a rule and return it; raises NOT_FOUND."""
        request = rights.RemoveRuleRequest(id=rule_id)
        answer = await self._seeds.call("Rights.Remove", request, rights.RemoveRuleResponse, patience=self._settings)
        return RightsRule.from_proto(answer.rule)

    async def check(
        self, operation: str, topic: str, *, group: str = "", principals: Sequence[str] = ()
    ) -> RightsDecision:
        """Whether the caller may do something, and why; or another caller, by its names and those of its groups."""
        request = rights.CheckRightRequest(operation=operation, topic=topic, group=group, principals=principals)
        answer = await self._seeds.call("Rights.Check", request, rights.CheckRightResponse, patience=self._settings)
        rule = RightsRule.from_proto(answer.rule) if answer.HasField("rule") else None
        return RightsDecision(answer.allowed, answer.reason, rule, answer.enforced)

    async def set_quota(
        self, principal: str, *, topics: int = 0, rate: int = 0, pending: int = 0, bytes: int = 0
    ) -> RightsQuota:
        """Limit each caller that a principal means, in place of its earlier quota; without a limit it is removed.

        `topics` is how many topics it may create, `rate` the messages per second that it may create or change at each
        broker, and `pending` the messages that its topics may have. Beyond, the broker answers QUOTA_EXCEEDED; a caller
        that is too fast waits.
        """
        quota = rights.RightsQuota(principal=principal, topics=topics, rate=rate, pending=pending, bytes=bytes)
        request = rights.QuotaRequest(quota=quota)
        answer = await self._seeds.call("Rights.SetQuota", request, rights.QuotaResponse, patience=self._settings)
        return RightsQuota.from_proto(answer.quota)

    async def quotas(self) -> Sequence[RightsQuota]:
        """All quotas for operators; otherwise the one that counts for the caller, if there is one."""
        request, patience = rights.ListQuotasRequest(), self._settings
        answer = await self._seeds.call("Rights.ListQuotas", request, rights.ListQuotasResponse, patience=patience)
        return [RightsQuota.from_proto(quota) for quota in answer.quotas]
