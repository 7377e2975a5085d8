"""Quotas: how much one caller may have and do. Each user or key that a quota is about has it separately."""

from __future__ import annotations

import builtins
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from dejaq.domain.context import Principal
from dejaq.errors import InvalidArgument
from dejaq.security.rights.matching import names_of
from dejaq.security.rights.rules import ANYTHING, check_principal

_MOST = 2**53


@dataclass(frozen=True, slots=True)
class Quota:
    """The limits of a principal; 0 means no limit."""

    principal: str
    # Topics that it created and that exist.
    topics: int = 0
    # Messages per second that it creates or changes, at each broker.
    rate: int = 0
    # Messages that are pending in all the topics that it created.
    pending: int = 0
    # Bytes of the bodies in all the topics that it created.
    bytes: int = 0

    def check(self) -> None:
        """Raise INVALID_ARGUMENT when the quota can mean nothing."""
        check_principal(self.principal)
        for name in ("topics", "rate", "pending", "bytes"):
            if not 0 <= getattr(self, name) <= _MOST:
                raise InvalidArgument(f"{name}={getattr(self, name)} is not an integer from 0, for no limit")

    @property
    def empty(self) -> bool:
        """Whether it limits nothing."""
        return not (self.topics or self.rate or self.pending or self.bytes)

    def packed(self) -> builtins.bytes:
        """The record of the quota."""
        return json.dumps(asdict(self), sort_keys=True).encode()

    @classmethod
    def unpack(cls, record: builtins.bytes) -> Quota:
        """The quota that `packed` wrote; raises ValueError for anything else."""
        try:
            values = json.loads(record)
            topics, rate, pending = (int(values[name]) for name in ("topics", "rate", "pending"))
            # Records of 0.2 have no bytes.
            return cls(str(values["principal"]), topics, rate, pending, int(values.get("bytes", 0)))
        except (KeyError, TypeError) as wrong:
            raise ValueError(f"not a quota: {wrong!r}") from None


class QuotaSet:
    """The quotas of a cluster. The most specific one counts: that of the caller, of its first group, of `*`."""

    def __init__(self, quotas: Iterable[Quota] = ()) -> None:
        self.quotas = {quota.principal: quota for quota in quotas}

    def of(self, principal: Principal) -> Quota | None:
        """The quota of a caller; None where nothing is limited."""
        if not self.quotas:
            return None
        names = names_of(principal)
        # Without `*`, which is the first name and the last to count.
        found = (self.quotas.get(name) for name in (*names[1:], ANYTHING))
        return next((quota for quota in found if quota is not None), None)

    def of_creator(self, creator: str) -> Quota | None:
        """The quota of the creator of a topic, whose groups are not known; None where nothing is limited."""
        if not creator or not self.quotas:
            return None
        return self.quotas.get(creator) or self.quotas.get(ANYTHING)
