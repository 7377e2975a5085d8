"""Generated from `dejaq.sdk.admin.rights` by `scripts/generate_sync.py`; edit that module, not this one."""

from __future__ import annotations

from collections.abc import Sequence

from dejaq.sdk.admin.rights import Rights as AsyncRights
from dejaq.sdk.admin.rights import RightsDecision, RightsQuota, RightsRule
from dejaq.sdk.blocking.portal import Blocking


class Rights(Blocking[AsyncRights]):
    """The rules of the cluster. Create it with `client.rights()`."""

    __slots__ = ()

    def list(self, *, principal: str = "", topic: str = "") -> Sequence[RightsRule]:
        """The rules that the caller may see, oldest first: all, those of a principal, or those that match a topic."""
        return self._portal.run(self._inner.list(principal=principal, topic=topic))

    def allow(self, principal: str, operations: Sequence[str], topic: str, *, group: str = "") -> RightsRule:
        """Allow operations on a topic, or on all that begin with `PREFIX*`, to a principal; a repeat changes nothing.

        A principal is `user:NAME`, `group:NAME`, `key:ID`, `certificate:NAME` or `*`. With `group`, `produce` and
        `change` are allowed as that producer group only.
        """
        return self._portal.run(self._inner.allow(principal, operations, topic, group=group))

    def deny(self, principal: str, operations: Sequence[str], topic: str, *, group: str = "") -> RightsRule:
        """Deny the same, whatever other rules allow."""
        return self._portal.run(self._inner.deny(principal, operations, topic, group=group))

    def remove(self, rule_id: str) -> RightsRule:
        """Remove a rule and return it; raises NOT_FOUND."""
        return self._portal.run(self._inner.remove(rule_id))

    def check(self, operation: str, topic: str, *, group: str = "", principals: Sequence[str] = ()) -> RightsDecision:
        """Whether the caller may do something, and why; or another caller, by its names and those of its groups."""
        return self._portal.run(self._inner.check(operation, topic, group=group, principals=principals))

    def set_quota(
        self, principal: str, *, topics: int = 0, rate: int = 0, pending: int = 0, bytes: int = 0
    ) -> RightsQuota:
        """Limit each caller that a principal means, in place of its earlier quota; without a limit it is removed.

        `topics` is how many topics it may create, `rate` the messages per second that it may create or change at each
        broker, and `pending` the messages that its topics may have. Beyond, the broker answers QUOTA_EXCEEDED; a caller
        that is too fast waits.
        """
        return self._portal.run(
            self._inner.set_quota(principal, topics=topics, rate=rate, pending=pending, bytes=bytes)
        )

    def quotas(self) -> Sequence[RightsQuota]:
        """All quotas for operators; otherwise the one that counts for the caller, if there is one."""
        return self._portal.run(self._inner.quotas())
