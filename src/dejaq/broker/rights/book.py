"""The rules of the cluster: kept in the storage, in a hidden topic, and the same at every broker.

A broker that changes a rule writes it to the storage, then changes a record of the synchronization service that every
broker watches; each one then reads the rules again. So rules are as durable as messages, are in every backup, and need
nothing of a store that messages do not need.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from hashlib import blake2b
from random import Random

from dejaq import limits
from dejaq.broker.catalog import Catalog
from dejaq.broker.rights.guard import Guard
from dejaq.broker.rights.quotas import UserQuotas
from dejaq.domain.batch import CreateBatch
from dejaq.domain.changes import Cancel, Create, Edit, Edits
from dejaq.domain.context import CallContext
from dejaq.domain.ids import ProducerSession
from dejaq.errors import Code, error_of
from dejaq.security.rights.matching import RuleSet
from dejaq.security.rights.quotas import Quota, QuotaSet
from dejaq.security.rights.rules import Rule
from dejaq.storage.base import Filter, Storage, apply_one
from dejaq.synchronization.base import Synchronization
from dejaq.synchronization.keys import RIGHTS
from dejaq.timekeeper.clock import Clock

# Hidden from earlier releases too, which know hidden topics by this ending; no topic can have the name in front of it.
TOPIC = "~/security/schedules"
_OWNER = "rights"
_PAGE_ROWS = 100
# The ids of quotas begin so; those of rules are hexadecimal digits.
_QUOTA = "quota."


class RuleBook:
    """Reads and writes the rules, and gives them to the guard."""

    def __init__(
        self,
        *,
        storage: Storage,
        clock: Clock,
        catalog: Catalog,
        synchronization: Synchronization,
        guard: Guard,
        quotas: UserQuotas,
        random: Random,
        changed: Callable[[], object] = lambda: None,
    ) -> None:
        """`changed` is called when other rules are in use."""
        self._changed = changed
        self._storage = storage
        self._clock = clock
        self._catalog = catalog
        self._synchronization = synchronization
        self._guard = guard
        self._quotas = quotas
        self._random = random
        self._turn = asyncio.Lock()
        # By id; replaced as a whole.
        self.rules: dict[str, Rule] = {}

    async def load(self) -> None:
        """Read every rule and use them from now on.

        Raises STORE_CORRUPT, and continues with the rules as they were, when a record cannot be read: the rule may be
        one that denies.
        """
        async with self._turn:
            topic = await self._catalog.records(TOPIC)
            if topic is None and not self.rules and not self._quotas.quotas.quotas:
                return
            rules: dict[str, Rule] = {}
            quotas: list[Quota] = []
            found = RuleSet()
            cursor: bytes | None = None
            while topic is not None:
                page = await self._storage.browse(topic, Filter(), cursor, _PAGE_ROWS, self._clock.now_ms())
                for message in page.messages:
                    record = _read(message.id, message.body)
                    if isinstance(record, Quota):
                        quotas.append(record)
                    else:
                        rules[message.id] = record
                        found.add(record)
                cursor = page.cursor
                if cursor is None:
                    break
                # Deliveries that are due meanwhile go first.
                await asyncio.sleep(0)
            self.rules = rules
            self._guard.set_rules(found)
            self._quotas.quotas = QuotaSet(quotas)
        self._changed()

    async def run(self) -> None:
        """Read the rules whenever a broker has changed them, until cancelled."""
        async for _ in self._synchronization.watch(RIGHTS):
            await self.load()

    async def add(self, context: CallContext, rule: Rule) -> tuple[Rule, bool]:
        """Keep a rule at every broker; returns it with its id, and whether it is new."""
        rule.check()
        rule = replace(rule, id=_id_of(rule), made_ms=self._clock.now_ms())
        if len(self.rules) >= limits.RULES_MAX and rule.id not in self.rules:
            raise error_of(Code.LIMIT_EXCEEDED, f"there are {limits.RULES_MAX:,} rules, the most a cluster keeps")
        topic = await self._catalog.make_records(context, TOPIC)
        outcomes = await apply_one(
            self._storage, Create(topic, self._record(rule.id, rule.packed())), rule.made_ms, context
        )
        await self._publish()
        kept = self.rules.get(rule.id, rule)
        return kept, outcomes[0] is Code.OK

    async def remove(self, context: CallContext, rule_id: str) -> Rule:
        """Remove a rule at every broker; raises NOT_FOUND."""
        topic = await self._catalog.records(TOPIC)
        rule = self.rules.get(rule_id)
        if rule is None or topic is None:
            raise error_of(Code.NOT_FOUND, f"no rule has the id {rule_id[:80]!r}; `dejaq rights list` shows all")
        # NOT_FOUND here means that another broker has removed it.
        await apply_one(self._storage, Cancel(topic, _OWNER, [rule_id]), self._clock.now_ms(), context)
        await self._publish()
        return rule

    async def set_quota(self, context: CallContext, quota: Quota) -> None:
        """Keep a quota at every broker in place of the principal's earlier one; an empty one is removed."""
        quota.check()
        known = self._quotas.quotas.quotas
        if len(known) >= limits.RULES_MAX and quota.principal not in known:
            raise error_of(Code.LIMIT_EXCEEDED, f"there are {limits.RULES_MAX:,} quotas, the most a cluster keeps")
        topic = await self._catalog.make_records(context, TOPIC)
        quota_id = _QUOTA + blake2b(quota.principal.encode(), digest_size=12).hexdigest()
        now = self._clock.now_ms()
        if quota.empty:
            await apply_one(self._storage, Cancel(topic, _OWNER, [quota_id]), now, context)
        else:
            edit = Edit(topic, _OWNER, Edits([quota_id], bodies=[quota.packed()]))
            if (await apply_one(self._storage, edit, now, context))[0] is Code.NOT_FOUND:
                batch = self._record(quota_id, quota.packed())
                await apply_one(self._storage, Create(topic, batch), now, context)
        await self._publish()

    def _record(self, record_id: str, record: bytes) -> CreateBatch:
        session = ProducerSession(self._clock.now_ms(), self._random.getrandbits(32))
        # As far away as possible: nothing leases it.
        return CreateBatch(_OWNER, session, 0, ts=[limits.TS_MS_MAX], bodies=[record], ids=[record_id])

    async def _publish(self) -> None:
        """Have every broker, this one first, read the rules again."""
        await self.load()
        await self._synchronization.put(RIGHTS, self._random.randbytes(8).hex().encode())


def _id_of(rule: Rule) -> str:
    """The same for the same rule, so that a repeat makes no second one."""
    text = "\n".join((rule.effect, rule.principal, *sorted(rule.operations), rule.topic, rule.group))
    return blake2b(text.encode(), digest_size=6).hexdigest()


def _read(rule_id: str, record: bytes) -> Rule | Quota:
    try:
        return Quota.unpack(record) if rule_id.startswith(_QUOTA) else Rule.unpack(record)
    except ValueError as wrong:
        raise error_of(Code.STORE_CORRUPT, f"the rule {rule_id} cannot be read: {wrong}") from None
