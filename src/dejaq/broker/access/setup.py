"""Makes the gate of a broker from its configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import SystemRandom

from dejaq import limits
from dejaq.broker.access.gate import CallerGate
from dejaq.broker.access.ledger import AccessLedger
from dejaq.broker.catalog import Catalog
from dejaq.broker.metrics import Metrics
from dejaq.domain.context import CallContext
from dejaq.errors import DejaqError
from dejaq.security.authenticator import CallerAuthenticator
from dejaq.security.base import Credentials
from dejaq.security.fetching import fetch_json
from dejaq.security.issuer_keys import IssuerKeys
from dejaq.security.settings import AuthSettings
from dejaq.security.tokens import TokenVerifier
from dejaq.storage.base import Storage
from dejaq.synchronization.base import Synchronization
from dejaq.timekeeper.clock import Clock


@dataclass(frozen=True, slots=True)
class AccessParts:
    """The gate, and the records behind it."""

    gate: CallerGate
    ledger: AccessLedger


def make_access(
    settings: AuthSettings | None,
    catalog: Catalog,
    synchronization: Synchronization,
    storage: Storage,
    clock: Clock,
    metrics: Metrics,
    refused: Callable[[Credentials, str, DejaqError], None],
    entered: Callable[[CallContext], None],
) -> AccessParts:
    """The parts for these settings; None for a broker without users."""
    ledger = AccessLedger(
        storage=storage, clock=clock, catalog=catalog, synchronization=synchronization, random=SystemRandom()
    )
    tokens = None
    if settings is not None and settings.issuers:
        tokens = TokenVerifier(
            [
                (issuer, IssuerKeys(issuer, fetch=partial(fetch_json, ca=issuer.ca), monotonic=clock.monotonic))
                for issuer in settings.issuers
            ]
        )
    gate = CallerGate(
        authenticator=CallerAuthenticator(settings, find_key=lambda key_id: ledger.keys.get(key_id), tokens=tokens),
        clock=clock,
        metrics=metrics,
        sessions_per_user_max=settings.sessions_per_user_max if settings is not None else limits.SESSIONS_MAX,
        check_session=ledger.check_session,
        refused=refused,
        entered=entered,
    )
    return AccessParts(gate, ledger)
