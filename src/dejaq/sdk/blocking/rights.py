"""Generated from `dejaq.sdk.admin.rights` by `scripts/generate_sync.py`; edit that module, not this one."""

from __future__ import annotations

from collections.abc import Sequence

from dejaq.sdk.admin.rights import Rights as AsyncRights
from dejaq.sdk.admin.rights import RightsDecision, RightsRule
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
