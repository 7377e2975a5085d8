"""Constructs the parts that decide about rights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import SystemRandom

from dejaq.broker.catalog import Catalog
from dejaq.broker.doctor import Doctor
from dejaq.broker.metrics import Metrics
from dejaq.broker.rights.audit import SecurityAudit
from dejaq.broker.rights.book import RuleBook
from dejaq.broker.rights.guard import Guard
from dejaq.broker.rights.quotas import UserQuotas
from dejaq.config import BrokerConfig
from dejaq.storage.base import Storage
from dejaq.synchronization.base import Synchronization
from dejaq.timekeeper.clock import Clock


@dataclass(frozen=True, slots=True)
class RightsParts:
    """The guard, the rules that it asks, and the log of what it refused."""

    guard: Guard
    book: RuleBook
    quotas: UserQuotas
    audit: SecurityAudit

    async def start(self) -> None:
        """Open the log and read the rules; raises when either cannot be read."""
        await self.audit.start()
        await self.book.load()


def make_rights(
    *,
    config: BrokerConfig,
    storage: Storage,
    clock: Clock,
    catalog: Catalog,
    synchronization: Synchronization,
    doctor: Doctor,
    metrics: Metrics,
    changed: Callable[[], object],
    has_admins: bool = False,
) -> RightsParts:
    """The parts of one broker; `changed` is called when other rules are in use.

    `has_admins`: the settings of authentication name administrators, so that everything else needs a right.
    """
    enabled = config.checks_rights or has_admins
    audit = SecurityAudit(config=config, clock=clock, doctor=doctor, metrics=metrics, enabled=enabled)
    guard = Guard(
        enabled=enabled,
        admins=config.admin_names,
        find_topic=catalog.named,
        refused=audit.refused,
        changed_many=audit.changed_many,
    )
    quotas = UserQuotas(storage=storage, clock=clock, topics=catalog.all, metrics=metrics, random=SystemRandom())
    book = RuleBook(
        storage=storage,
        clock=clock,
        catalog=catalog,
        synchronization=synchronization,
        guard=guard,
        quotas=quotas,
        random=SystemRandom(),
        changed=changed,
    )
    return RightsParts(guard, book, quotas, audit)
